package logfile

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strconv"
	"time"
)

// Scheme is the scheme of the URIs that tell a shim where to log.
const Scheme = "cloudless-log"

// Command is the argument that makes the shim's program the logger of a stock
// shim; the log's URI follows it.
const Command = "log"

// Limits bounds a log's disk space. A zero field means its default.
type Limits struct {
	// MaxFileBytes is the size at which the next file is started, 10 MiB by
	// default. A file may exceed it by one batch of records, about 80 KiB.
	MaxFileBytes int64
	// MaxFiles is the number of files kept, 5 by default.
	MaxFiles int
	// MaxAge is the age at which output is removed, at the latest a quarter of it later,
	// provided that there is new output. By default there is no limit.
	MaxAge time.Duration
}

// The default limits of a log.
const (
	DefaultMaxFileBytes = 10 << 20
	DefaultMaxFiles     = 5
)

func (l Limits) withDefaults() Limits {
	if l.MaxFileBytes == 0 {
		l.MaxFileBytes = DefaultMaxFileBytes
	}
	if l.MaxFiles == 0 {
		l.MaxFiles = DefaultMaxFiles
	}
	return l
}

func (l Limits) validate() error {
	switch {
	case l.MaxFileBytes < 0:
		return fmt.Errorf("max-bytes %d: must not be negative", l.MaxFileBytes)
	case l.MaxFiles < 0:
		return fmt.Errorf("max-files %d: must not be negative", l.MaxFiles)
	case l.MaxAge < 0:
		return fmt.Errorf("max-age %s: must not be negative", l.MaxAge)
	}
	return nil
}

// URI names the log in dir, an absolute path, and its limits. A client passes it to the
// shim as the task's standard output and standard error.
func URI(dir string, limits Limits) string {
	limits = limits.withDefaults()
	query := url.Values{
		"max-bytes": {strconv.FormatInt(limits.MaxFileBytes, 10)},
		"max-files": {strconv.Itoa(limits.MaxFiles)},
	}
	if limits.MaxAge != 0 {
		query.Set("max-age", limits.MaxAge.String())
	}
	u := url.URL{Scheme: Scheme, Path: filepath.Clean(dir), RawQuery: query.Encode()}
	return u.String()
}

// BinaryURI names the same log for a stock shim, which runs program, the path
// of our shim, as its logger. Such a shim passes the query as arguments in no
// particular order, which is why the whole log is one of them.
func BinaryURI(program, dir string, limits Limits) string {
	u := url.URL{
		Scheme:   "binary",
		Path:     filepath.Clean(program),
		RawQuery: url.Values{Command: {URI(dir, limits)}}.Encode(),
	}
	return u.String()
}

// ErrScheme means that a URI is not one of a log.
var ErrScheme = errors.New("not a " + Scheme + " URI")

// ParseURI is the inverse of [URI]. It refuses other URIs with [ErrScheme]; the returned
// limits have no zero field but MaxAge.
func ParseURI(uri string) (dir string, limits Limits, err error) {
	u, err := url.Parse(uri)
	if err != nil || u.Scheme != Scheme {
		return "", Limits{}, ErrScheme
	}
	if u.Host != "" || u.User != nil || !filepath.IsAbs(u.Path) {
		return "", Limits{}, fmt.Errorf("log URI %q: needs an absolute path and no host, as in %s:///var/log/x", uri, Scheme)
	}
	limits, err = parseLimits(u)
	if err != nil {
		return "", Limits{}, fmt.Errorf("log URI %q: %w", uri, err)
	}
	return filepath.Clean(u.Path), limits, nil
}

func parseLimits(u *url.URL) (limits Limits, err error) {
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return Limits{}, err
	}
	for key, values := range query {
		value := values[len(values)-1]
		switch key {
		case "max-bytes":
			limits.MaxFileBytes, err = strconv.ParseInt(value, 10, 64)
		case "max-files":
			limits.MaxFiles, err = strconv.Atoi(value)
		case "max-age":
			limits.MaxAge, err = time.ParseDuration(value)
		default:
			err = errors.New("unknown limit")
		}
		if err != nil {
			return Limits{}, fmt.Errorf("%s=%q: %w", key, value, err)
		}
	}
	if err := limits.validate(); err != nil {
		return Limits{}, err
	}
	return limits.withDefaults(), nil
}

package command

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

// ParseTime parses a duration before now, such as 5m or 2d, or an RFC 3339 date and time. The time, or seconds and zone,
// may be missing. Without a zone it is local time.
func ParseTime(s string, now time.Time) (time.Time, error) {
	if before, err := parseAgo(s); err == nil {
		return now.Add(-before), nil
	}
	if at, err := time.Parse(time.RFC3339Nano, s); err == nil {
		return checkTime(s, at)
	}
	for _, layout := range []string{"2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02 15:04:05", "2006-01-02 15:04", time.DateOnly} {
		if at, err := time.ParseInLocation(layout, s, now.Location()); err == nil {
			return checkTime(s, at)
		}
	}
	return time.Time{}, fmt.Errorf("%.64q is not a time: write how long ago, such as 5m or 1h30m, or a date and time such as 2006-01-02T15:04:05Z", s)
}

// parseAgo accepts days besides the units of spec.ParseDuration.
func parseAgo(s string) (time.Duration, error) {
	const most = 100 * 365 // days, far below what a Duration can hold
	if days, ok := strings.CutSuffix(s, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 32)
		if err != nil || n > most {
			return 0, fmt.Errorf("%.64q is not a number of days", s)
		}
		return time.Duration(n) * 24 * time.Hour, nil
	}
	d, err := spec.ParseDuration(s)
	if err == nil && (s == "" || d < 0 || d > most*24*time.Hour) {
		return 0, fmt.Errorf("%.64q is not a length of time", s)
	}
	return d, err
}

// checkTime refuses times that the API's timestamps cannot represent.
func checkTime(s string, at time.Time) (time.Time, error) {
	if at = at.UTC(); at.Year() < 1 || at.Year() > 9999 {
		return time.Time{}, fmt.Errorf("%.64q is not a time: the year must be from 1 to 9999", s)
	}
	return at, nil
}

// ParsePublish parses a published port: HOST:PORT, or PORT if both are the same, with an optional address, protocol and
// name: 8080:80, 53/udp, http=8080:80, 127.0.0.1:8080:80 or [::1]:8080:80.
func ParsePublish(s string) (*cloudlessv1.Port, error) {
	port := &cloudlessv1.Port{}
	numbers := s
	if name, rest, named := strings.Cut(numbers, "="); named {
		port.Name, numbers = name, rest
	}
	if rest, protocol, given := strings.Cut(numbers, "/"); given {
		if protocol != "tcp" && protocol != "udp" {
			return nil, fmt.Errorf("port %.64q: the protocol must be tcp or udp", s)
		}
		port.Protocol, numbers = protocol, rest
	}
	if address, rest, bound := cutAddress(numbers); bound {
		port.PublishAddress, numbers = address.String(), rest
	}
	host, inside, both := strings.Cut(numbers, ":")
	if !both {
		inside = host
	}
	for text, number := range map[*string]*int32{&host: &port.Publish, &inside: &port.Port} {
		n, err := strconv.ParseUint(*text, 10, 16)
		if err != nil || n == 0 {
			return nil, fmt.Errorf("port %.64q: write numbers from 1 to 65535, such as 8080:80, 8080, 5353:53/udp, http=8080:80 or 127.0.0.1:8080:80", s)
		}
		*number = int32(n)
	}
	return port, nil
}

// cutAddress splits ADDRESS:HOST:PORT after the address.
func cutAddress(s string) (address netip.Addr, rest string, found bool) {
	end := strings.LastIndex(s, ":")
	if end < 0 {
		return address, s, false
	}
	if end = strings.LastIndex(s[:end], ":"); end < 0 {
		return address, s, false
	}
	text := s[:end]
	inner, bracketed := strings.CutPrefix(text, "[")
	if bracketed {
		text = strings.TrimSuffix(inner, "]")
	}
	address, err := netip.ParseAddr(text)
	return address, s[end+1:], err == nil && address.Is6() == bracketed
}

// ParsePairs parses KEY=VALUE arguments. A key alone takes its value from lookup, if lookup is not nil.
func ParsePairs(what string, pairs []string, lookup func(string) (string, bool)) (map[string]string, error) {
	values := map[string]string{}
	for _, pair := range pairs {
		key, value, found := strings.Cut(pair, "=")
		if !found && lookup != nil {
			value, found = lookup(key)
			if !found {
				return nil, fmt.Errorf("%s %.64q has no value, and the environment has none for it: write %s=VALUE", what, pair, key)
			}
		}
		switch {
		case key == "":
			return nil, fmt.Errorf("%s %.64q has no key: write KEY=VALUE", what, pair)
		case !found:
			return nil, fmt.Errorf("%s %.64q has no value: write %.64s=VALUE", what, pair, key)
		}
		if _, twice := values[key]; twice {
			return nil, fmt.Errorf("%s %.64q is given twice", what, key)
		}
		values[key] = value
	}
	if len(values) == 0 {
		return nil, nil
	}
	return values, nil
}

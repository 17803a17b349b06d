package systemd

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// ForGood is the exit code after which systemd does not restart the service, because a restart cannot help.
const ForGood = 78

// Unit is a service of this program.
type Unit struct {
	// Binary is the absolute path of the program.
	Binary string
	// Args are its arguments: the role and its flags.
	Args []string
	// DataDir is recorded in the unit for uninstall --purge.
	DataDir string
}

// Text is the unit file.
//
// The important settings: KillMode=process, because containers and their shims outlive the process on purpose;
// Delegate=yes, because they have cgroups of their own; no start timeout, because an agent is ready only once it has
// reached its server, which may be unreachable for long.
func (u Unit) Text() (string, error) {
	if !filepath.IsAbs(u.Binary) || !filepath.IsAbs(u.DataDir) || len(u.Args) == 0 {
		return "", errors.New("a unit needs a role and absolute paths of the program and the data folder")
	}
	words := make([]string, 0, 1+len(u.Args))
	for _, word := range append([]string{u.Binary}, u.Args...) {
		quoted, err := quote(word)
		if err != nil {
			return "", err
		}
		words = append(words, quoted)
	}
	for _, path := range []string{u.Binary, u.DataDir} {
		if strings.ContainsAny(path, "\n\r") {
			return "", fmt.Errorf("the path %q has a line break: choose another one", path)
		}
	}
	return `# Written by cloudless install. The next install overwrites it.
[Unit]
Description=Cloudless ` + u.Args[0] + `
After=network-online.target
Wants=network-online.target
StartLimitIntervalSec=0

[Service]
Type=notify
ExecStart=` + strings.Join(words, " ") + `
Restart=always
RestartPreventExitStatus=` + strconv.Itoa(ForGood) + `
RestartSec=2
TimeoutStartSec=infinity
TimeoutStopSec=30
KillMode=process
Delegate=yes
LimitNOFILE=1048576
TasksMax=infinity
OOMScoreAdjust=` + strconv.Itoa(OOMScore) + `

[Install]
WantedBy=multi-user.target

[X-Cloudless]
Binary=` + u.Binary + `
DataDir=` + u.DataDir + `
`, nil
}

var plainWord = regexp.MustCompile(`^[A-Za-z0-9_./:=@,+-]+$`)

// quote escapes an argument for a unit, so that systemd expands no specifier or variable and does not split it.
func quote(word string) (string, error) {
	if plainWord.MatchString(word) {
		return word, nil
	}
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range word {
		switch {
		case r == '"' || r == '\\':
			b.WriteRune('\\')
			b.WriteRune(r)
		case r == '%' || r == '$':
			b.WriteRune(r)
			b.WriteRune(r)
		case r < ' ' || r == 0x7f || r == '\uFFFD':
			return "", fmt.Errorf("the argument %q cannot be written into a unit: leave control characters out", word)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String(), nil
}

// notes parses the values recorded in a unit; false if cloudless did not write it.
func notes(text string) (u Unit, ours bool) {
	_, section, found := strings.Cut(text, "\n[X-Cloudless]\n")
	if !found {
		return Unit{}, false
	}
	for line := range strings.Lines(section) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		switch key {
		case "Binary":
			u.Binary = value
		case "DataDir":
			u.DataDir = value
		}
	}
	return u, filepath.IsAbs(u.Binary) && filepath.IsAbs(u.DataDir)
}

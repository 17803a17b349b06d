package netlab

import (
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// inventory is what Cloudless could leave behind in the network of a machine. The machine's own rules are part of it.
func (m *machine) inventory() map[string]string {
	all := map[string]string{}
	for kind, command := range map[string]string{
		"links":     "ip -o link | sed 's/^[0-9]*: //' | awk '{ print $1, $2, $4, $5 }'",
		"addresses": "ip -o address | awk '{ print $2, $4 }'",
		"routes":    "(ip route show table all; ip -6 route show table all; ip rule; ip -6 rule) | sort -u",
		"rules":     "nft list ruleset",
		"settings":  "sysctl -a 2>/dev/null | grep '^net\\.' | grep -v nf_conntrack_count",
		"sockets":   "ss -Hlntup; ss -Hlnx",
	} {
		out, err := output(m.command("sh", "-c", command))
		if err != nil {
			m.lab.t.Fatal(err)
		}
		all[kind] = out
	}
	return all
}

// differences says what is not as before.
func differences(before, after map[string]string) (found []string) {
	for kind := range before {
		if after[kind] != before[kind] {
			found = append(found, fmt.Sprintf("the %s differ: %s", kind, difference(before[kind], after[kind])))
		}
	}
	return found
}

// difference lists the lines that only one of two texts has.
func difference(before, after string) string {
	var all strings.Builder
	for _, part := range []struct{ sign, some, others string }{{"-", before, after}, {"+", after, before}} {
		for line := range strings.Lines(part.some) {
			if !slices.Contains(strings.SplitAfter(part.others, "\n"), line) {
				all.WriteString("\n" + part.sign + strings.TrimSpace(line))
			}
		}
	}
	return cmp.Or(all.String(), "in the order of lines")
}

// inventory is what Cloudless could leave behind on this computer, outside of the networks of its machines.
func (l *lab) inventory() map[string]string {
	var processes, files, mounts strings.Builder
	commands, _ := filepath.Glob("/proc/[0-9]*/cmdline") // of this sandbox only
	for _, file := range commands {
		line, _ := os.ReadFile(file)
		if words := strings.ReplaceAll(string(line), "\x00", " "); !strings.HasPrefix(words, "nsenter ") {
			fmt.Fprintln(&processes, words)
		}
	}
	l.must(filepath.WalkDir("/run", func(file string, _ fs.DirEntry, err error) error {
		fmt.Fprintln(&files, file)
		return err
	}))
	for _, m := range l.machines {
		data, _ := filepath.Glob(m.data())
		fmt.Fprintln(&files, data)
	}
	all, err := os.ReadFile("/proc/self/mounts")
	l.must(err)
	for line := range strings.Lines(string(all)) {
		if strings.Contains(line, l.dir) { // others were inherited, and those below /run are files as well
			mounts.WriteString(line)
		}
	}
	return map[string]string{"processes": processes.String(), "files": files.String(), "mounts": mounts.String()}
}

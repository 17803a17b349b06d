package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The program as another one drives it: JSON lines out, commands in.
func TestCommands(t *testing.T) {
	c := newCluster(t)
	token := filepath.Join(t.TempDir(), "token")
	must(t, os.WriteFile(token, []byte(c.token("node", 10)+"\n"), 0o600))
	in, commands := io.Pipe()
	lines, out := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- run(c.ctx, []string{"--json", "--nodes", "10", "--join", c.servers["s1"].address, "--token-file", token, "--sources", "127.7.0.0/24"}, in, out, io.Discard)
		_ = out.Close()
	}()
	words := bufio.NewScanner(lines)
	next := func(met func(word) bool) word {
		t.Helper()
		for words.Scan() {
			var w word
			must(t, json.Unmarshal(words.Bytes(), &w))
			if met(w) {
				return w
			}
		}
		t.Fatal("the program ended")
		return word{}
	}
	next(func(w word) bool { return w.Did == "enroll" })
	next(func(w word) bool { return w.Stats["connected"] == 10.0 })
	c.untilNodes(func(states map[string]string) bool { return all(states, 10, "ready") })

	say := func(line string) { go func() { _, _ = io.WriteString(commands, line+"\n") }() } // read when its time comes
	say("kill 30%")
	killed := next(func(w word) bool { return w.Did == "kill" })
	if len(killed.Nodes) != 3 || killed.Nodes[0].UID == "" || !strings.HasPrefix(killed.Nodes[0].Address, "127.7.0.") {
		t.Errorf("killed %+v", killed.Nodes)
	}
	next(func(w word) bool { return w.Stats["connected"] == 7.0 })
	say("dance")
	if w := next(func(w word) bool { return w.Error != "" }); !strings.Contains(w.Error, "kill N") {
		t.Errorf("a wrong command is refused with %q", w.Error)
	}
	say("return")
	next(func(w word) bool { return w.Stats["connected"] == 10.0 })
	say("quit")
	next(func(w word) bool { return w.Did == "end" })
	for words.Scan() { // until it has ended
	}
	must(t, <-done)
}

func TestWrongArgumentsAreRefusedInASentence(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	must(t, os.WriteFile(token, []byte("x"), 0o600))
	for want, args := range map[string][]string{
		"--token-file":      {"--nodes", "3"},
		"read the join":     {"--token-file", token + "-not"},
		"larger range":      {"--token-file", token, "--nodes", "300", "--sources", "127.7.0.0/24"},
		"such as 127.7.0.0": {"--token-file", token, "--sources", "::1/64"},
		"see --help":        {"--token-file", token, "extra"},
		"join token":        {"--token-file", token},
	} {
		err := run(context.Background(), args, strings.NewReader(""), io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: got %v, want %q", args, err, want)
		}
	}
	var help bytes.Buffer
	if err := run(context.Background(), []string{"--help"}, strings.NewReader(""), io.Discard, &help); !errors.Is(err, flag.ErrHelp) || !strings.Contains(help.String(), "go run ./test/fleet --nodes 5000") {
		t.Errorf("help: %v\n%s", err, help.String())
	}
}

func TestShares(t *testing.T) {
	for text, want := range map[string]int{"500": 500, "10%": 100, "100%": 1000, "250%": 1000, "0": 0} {
		if got, err := share(text, 1000); err != nil || got != want {
			t.Errorf("%s of 1000: %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "ten", "-1", "%", "1.5%"} {
		if _, err := share(text, 1000); err == nil {
			t.Errorf("%q is a number of nodes", text)
		}
	}
}

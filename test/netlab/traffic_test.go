package netlab

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
)

// get asks the replica of another machine for a page, from the replica of this one, and checks the answer: it names
// both replicas, so nobody else has answered, and the client's address was preserved.
func (m *machine) get(to *machine, v6 bool) error {
	from, host := m.replica.v4, to.replica.v4
	if v6 {
		from, host = "["+m.replica.v6+"]", "["+to.replica.v6+"]"
	}
	out, err := m.curl(host)
	if err != nil {
		return fmt.Errorf("from %s to %s: %w", m.name, to.name, err)
	}
	if want := fmt.Sprintf("%s: %s answers %s:", marker, to.replica.name, from); !strings.HasPrefix(out, want) {
		return fmt.Errorf("from %s to %s, the answer is %q, want %q", m.name, to.name, out, want)
	}
	return nil
}

// curl asks a host for a page, from the machine's replica.
func (m *machine) curl(host string) (string, error) {
	return output(m.inReplica("curl", "--silent", "--show-error", "--max-time", "3", "--user-agent", marker, "http://"+host+":8000/"))
}

// finds checks that the machine's replica finds all others by name, with dig.
func (m *machine) finds(others []*machine) error {
	questions, want := []string{"dig", "+short"}, ""
	for _, other := range others {
		name := fmt.Sprintf("%s.%s.default.cloudless.internal", other.replica.name, workload)
		questions = append(questions, name, "A", name, "AAAA")
		want += other.replica.v4 + "\n" + other.replica.v6 + "\n"
	}
	out, err := output(m.inReplica(questions...))
	if err == nil && out != want {
		err = fmt.Errorf("on %s, dig prints %q, want %q", m.name, out, want)
	}
	return err
}

// findsService checks that the machine's replica reaches the service by its short name.
func (m *machine) findsService(address string) error {
	out, err := output(m.inReplica("dig", "+short", "+search", workload))
	if err == nil && out != address+"\n" {
		err = fmt.Errorf("on %s, %s is %q, want %q", m.name, workload, out, address)
	}
	if err != nil {
		return err
	}
	if out, err = m.curl(workload); err == nil && !strings.HasPrefix(out, marker+": "+workload+"-") {
		err = fmt.Errorf("on %s, the service answers %q", m.name, out)
	}
	return err
}

// Sizes of transfers: the small one is for looking which way packets take.
const small, bulk = 1 << 20, 8 << 20

// content is a file full of markers.
func (l *lab) content(size int) (string, error) {
	file := filepath.Join(l.dir, fmt.Sprintf("content-%d", size))
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		return file, err
	}
	return file, os.WriteFile(file, []byte(strings.Repeat(marker+"\n", size/len(marker)+1)[:size]), 0o600)
}

// transfer sends many bytes from one replica to another with iperf3, and returns how many were received. Those that are
// on the way when the last one is sent do not count, because iperf3 does not wait for them: the window limits them.
func (l *lab) transfer(from, to *machine, size int, v6 bool) (received int, err error) {
	content, err := l.content(size)
	if err != nil {
		return 0, err
	}
	server := to.inReplica("iperf3", "--server", "--one-off", "--forceflush")
	said, err := server.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := server.Start(); err != nil {
		return 0, err
	}
	defer func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	}()
	lines := bufio.NewReader(said)
	for line := ""; !strings.HasPrefix(line, "Server listening"); {
		if line, err = lines.ReadString('\n'); err != nil {
			return 0, fmt.Errorf("the server of iperf3 ended: %w", err)
		}
	}
	host := to.replica.v4
	if v6 {
		host = to.replica.v6
	}
	out, err := output(from.inReplica("iperf3", "--client", host, "--file", content, "--json", "--window", "128K", "--connect-timeout", "5000"))
	if err != nil {
		return 0, fmt.Errorf("from %s to %s: %w", from.name, to.name, err)
	}
	var result struct {
		End struct {
			Received struct{ Bytes int } `json:"sum_received"`
		}
	}
	if err := json.Unmarshal([]byte(out), &result); err != nil {
		return 0, err
	}
	if received = result.End.Received.Bytes; received < size/2 {
		return 0, fmt.Errorf("from %s to %s, %d of %d bytes arrived", from.name, to.name, received, size)
	}
	return received, nil
}

// way is what a transfer looks like on the wires: how many bytes were received, how many went directly, and how many
// to the relay.
type way struct{ received, direct, relayed int }

func (w way) String() string {
	return fmt.Sprintf("%d bytes were received, %d went directly, and %d through the relay", w.received, w.direct, w.relayed)
}

// wayOf transfers bytes and looks which way they take. A direct path is expected on a given wire.
func (l *lab) wayOf(wire *capture, from, to *machine, size int) (way, error) {
	direct, relayed := flow{from.public, to.public, "udp"}, flow{from.public, l.server.public, "tcp"}
	if wire != l.internet {
		direct.from, direct.to = from.private, to.private
	}
	if from.public.Is6() {
		relayed.to = netip.MustParseAddr(serverV6)
		if to == l.server {
			direct.to = relayed.to
		}
	}
	before := way{0, wire.bytes(direct), l.internet.bytes(relayed)}
	received, err := l.transfer(from, to, size, false)
	if err != nil {
		return way{}, err
	}
	wire.sync(l)
	l.internet.sync(l)
	return way{received, wire.bytes(direct) - before.direct, l.internet.bytes(relayed) - before.relayed}, nil
}

// conversation is a connection between two replicas that stays open, by curl.
type conversation struct {
	lab      *lab
	from, to string
	in       io.Writer
	out      *bufio.Reader
}

// converse begins a conversation, which lasts as long as the lab.
func (l *lab) converse(from, to *machine) *conversation {
	curl := from.inReplica("curl", "--silent", "--show-error", "--no-progress-meter", "--no-buffer", "--upload-file", ".", "http://"+to.replica.v4+":8000/echo")
	in, err := curl.StdinPipe()
	l.must(err)
	out, err := curl.StdoutPipe()
	l.must(err)
	curl.Stderr = os.Stderr
	l.must(curl.Start())
	l.t.Cleanup(func() {
		_ = in.Close()
		_ = curl.Process.Kill()
		_ = curl.Wait()
	})
	return &conversation{l, from.name, to.name, in, bufio.NewReader(out)}
}

// say sends a line and waits until it comes back.
func (c *conversation) say(what string) {
	c.lab.t.Helper()
	line := marker + " " + what + "\n"
	_, err := io.WriteString(c.in, line)
	c.lab.must(err)
	got, err := c.out.ReadString('\n')
	if err != nil || got != line {
		c.lab.t.Fatalf("the connection from %s to %s, %s: %q, %v", c.from, c.to, what, got, err)
	}
}

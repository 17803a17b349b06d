package discover

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// network is two machines with a cable between them, a at 10.9.0.1 and b at 10.9.0.2.
func network(t *testing.T) (a, b string) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs root and network namespaces; make test runs it")
	}
	name := fmt.Sprintf("discover-%d", os.Getpid())
	a, b = name+"-a", name+"-b"
	for _, space := range []string{a, b} {
		ip(t, "netns", "add", space)
		t.Cleanup(func() { ip(t, "netns", "del", space) })
		ip(t, "-n", space, "link", "set", "lo", "up")
	}
	ip(t, "-n", a, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", b)
	for i, space := range []string{a, b} {
		ip(t, "-n", space, "addr", "add", fmt.Sprintf("10.9.0.%d/24", i+1), "dev", "eth0")
		ip(t, "-n", space, "addr", "add", fmt.Sprintf("fd09::%d/64", i+1), "dev", "eth0", "nodad")
		ip(t, "-n", space, "link", "set", "eth0", "up")
	}
	return a, b
}

func ip(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// TestMain lets this program announce and search on another machine: a namespace belongs to a thread, and both use
// several.
func TestMain(m *testing.M) {
	var err error
	switch role := os.Getenv("DISCOVER_ROLE"); role {
	case "":
		os.Exit(m.Run())
	case "announce":
		err = announceUntilEnd(os.Getenv("DISCOVER_OPTIONS"))
	case "search":
		err = Search(context.Background(), func(f Found) bool {
			err := json.NewEncoder(os.Stdout).Encode(f)
			return err != nil
		})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// announceUntilEnd announces until its standard input ends.
func announceUntilEnd(options string) error {
	o := AnnounceOptions{Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	if err := json.Unmarshal([]byte(options), &o); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	return Announce(ctx, o)
}

// inside is this program on another machine.
func inside(t *testing.T, space, role string, env ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("nsenter", "--net=/run/netns/"+space, self)
	cmd.Env = append(os.Environ(), append(env, "DISCOVER_ROLE="+role)...)
	cmd.Stderr = t.Output()
	return cmd
}

// announce announces a server until the test ends, and then stops it in order.
func announce(t *testing.T, space string, o AnnounceOptions) {
	t.Helper()
	options, err := json.Marshal(map[string]string{"Name": o.Name, "Cluster": o.Cluster, "Listen": o.Listen, "Advertise": o.Advertise})
	if err != nil {
		t.Fatal(err)
	}
	cmd := inside(t, space, "announce", "DISCOVER_OPTIONS="+string(options))
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("announce %v: %v", o, err)
		}
	})
}

// find searches until as many are found.
func find(t *testing.T, space string, want int) []Found {
	t.Helper()
	cmd := inside(t, space, "search")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	var all []Found
	for answers := json.NewDecoder(out); len(all) < want; {
		var f Found
		if err := answers.Decode(&f); err != nil {
			t.Fatalf("after %v: %v", all, err)
		}
		all = append(all, f)
	}
	slices.SortFunc(all, func(a, b Found) int { return strings.Compare(a.Address, b.Address) })
	return all
}

func TestServersAreFoundOnTheSameNetwork(t *testing.T) {
	a, b := network(t)
	announce(t, a, AnnounceOptions{Name: "one", Cluster: cluster, Listen: "10.9.0.1:7700"})
	announce(t, a, AnnounceOptions{Name: "two", Cluster: "other", Listen: "10.9.0.1:7701", Advertise: "box.example.org:7701"})
	announce(t, b, AnnounceOptions{Name: "self", Cluster: cluster, Listen: "10.9.0.2:7700"})
	announce(t, a, AnnounceOptions{Name: "hidden", Cluster: cluster, Listen: "127.0.0.1:7703"})
	want := []Found{{"10.9.0.1:7700", cluster}, {"10.9.0.2:7700", cluster}, {"box.example.org:7701", "other"}}
	if got := find(t, b, 3); !slices.Equal(got, want) {
		t.Errorf("found %v, want %v", got, want)
	}
	if got := find(t, a, 3); !slices.Equal(got, want) {
		t.Errorf("found on the other side %v, want %v", got, want)
	}
}

// A server that listens on all addresses gives each client the address on its own network and of its own family.
func TestServerOnAllAddresses(t *testing.T) {
	a, b := network(t)
	announce(t, a, AnnounceOptions{Name: "one", Cluster: cluster, Listen: "[::]:7700"})
	want := []Found{{"10.9.0.1:7700", cluster}, {"[fd09::1]:7700", cluster}}
	if got := find(t, b, 2); !slices.Equal(got, want) {
		t.Errorf("found %v, want %v", got, want)
	}
}

func TestMachineWithoutNetwork(t *testing.T) {
	a, _ := network(t)
	ip(t, "-n", a, "link", "del", "eth0")
	cmd := inside(t, a, "search")
	cmd.Stderr = nil
	out, err := cmd.CombinedOutput()
	if err == nil || strings.TrimSpace(string(out)) != ErrNoNetwork.Error() {
		t.Errorf("search: %v, %s", err, out)
	}
}

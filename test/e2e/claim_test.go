package e2e

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// claim reserves one of n numbers of a kind on this machine, until release is called or
// the process ends. Claims are abstract sockets, because the kernel closes them with
// their process.
func claim(kind string, n int, usable func(number int) bool) (number int, release func() error, err error) {
	for range 1000 {
		number := rand.IntN(n)
		held, err := net.Listen("unix", fmt.Sprintf("@cloudless-e2e-%s-%d", kind, number))
		if err != nil {
			continue // another story has claimed it
		}
		if usable(number) {
			return number, held.Close, nil
		}
		if err := held.Close(); err != nil {
			return 0, nil, err
		}
	}
	return 0, nil, fmt.Errorf("no %s is free", kind)
}

// claimAddress reserves a port of this machine. It avoids the kernel's ephemeral ports,
// because an outgoing connection could take one of them first.
func claimAddress() (address string, release func() error, err error) {
	const lowest, ports = 10_000, 20_000
	onLoopback := func(number int) string { return fmt.Sprintf("127.0.0.1:%d", lowest+number) }
	number, release, err := claim("port", ports, func(number int) bool {
		l, err := net.Listen("tcp", onLoopback(number))
		return err == nil && l.Close() == nil
	})
	return onLoopback(number), release, err
}

// freeAddress returns an address that is reserved until the test ends.
func freeAddress(t *testing.T) string {
	t.Helper()
	address, release, err := claimAddress()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = release() })
	return address
}

// network is the names and addresses that a story has for itself. The names end in
// -number, and all addresses of a family are in one subnet.
type network struct{ number int }

// networks is the number of /30 subnets in 10.213.0.0/16.
const networks = 1 << 14

func claimNetwork() (n network, release func() error, err error) {
	number, release, err := claim("network", networks, func(number int) bool { return network{number}.unused() })
	return network{number}, release, err
}

// unused reports whether a killed story has left nothing behind.
func (n network) unused() bool {
	spaces, err := filepath.Glob("/run/netns/*-" + fmt.Sprint(n.number))
	if err != nil || len(spaces) > 0 {
		return false
	}
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	for _, address := range addresses {
		if address.String() == n.here()+"/30" {
			return false
		}
	}
	return true
}

func (n network) name(base string) string { return fmt.Sprintf("%s-%d", base, n.number) }

func (n network) v4(host int) string {
	return fmt.Sprintf("10.213.%d.%d", n.number>>6, n.number&63<<2+host)
}

func (n network) v6(host int) string { return fmt.Sprintf("fd13:213:%x::%d", 1+n.number, host) }

func (n network) here() string  { return n.v4(1) }
func (n network) there() string { return n.v4(2) }

// networkOf is the key of a story's network in its environment.
type networkOf struct{}

func networkFor(ts *testscript.TestScript) network { return ts.Value(networkOf{}).(network) }

// claimAll reserves the addresses and names of a story until it ends.
func claimAll(env *testscript.Env) error {
	var releases []func() error
	env.Defer(func() {
		for _, release := range releases {
			if err := release(); err != nil && !errors.Is(err, os.ErrClosed) {
				env.T().Log("release a claim:", err)
			}
		}
	})
	for _, key := range []string{"ADDR", "ADDR2", "ADDR3", "ADDR4", "ADDR5", "ADDR6"} {
		address, release, err := claimAddress()
		if err != nil {
			return err
		}
		releases = append(releases, release)
		env.Setenv(key, address)
	}
	n, release, err := claimNetwork()
	if err != nil {
		return err
	}
	releases = append(releases, release)
	env.Values[networkOf{}] = n
	for key, value := range map[string]string{"HERE": n.here(), "THERE": n.there(), "HERE6": n.v6(1), "THERE6": n.v6(2)} {
		env.Setenv(key, value)
	}
	return nil
}

func TestNoTwoStoriesShareANetwork(t *testing.T) {
	taken := map[string]bool{}
	for range 200 {
		n, release, err := claimNetwork()
		if err != nil {
			t.Fatal(err)
		}
		defer release()
		for _, what := range []string{n.here(), n.there(), n.v6(1), n.v6(2), n.name("far")} {
			if taken[what] {
				t.Errorf("%s was claimed twice", what)
			}
			taken[what] = true
		}
		_, subnet, err := net.ParseCIDR(n.here() + "/30")
		if err != nil || !subnet.Contains(net.ParseIP(n.there())) {
			t.Errorf("%s and %s are not in one subnet: %v", n.here(), n.there(), err)
		}
	}
}

func TestReleasedClaimCanBeTakenAgain(t *testing.T) {
	always := func(int) bool { return true }
	_, release, err := claim("only-one", 1, always)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := claim("only-one", 1, always); err == nil {
		t.Error("the number was claimed twice")
	}
	if err := release(); err != nil {
		t.Fatal(err)
	}
	_, release, err = claim("only-one", 1, always)
	if err != nil {
		t.Fatal(err)
	}
	if err := release(); err != nil {
		t.Error(err)
	}
}

package membership

import (
	"fmt"
	"testing"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/must"
	"github.com/cloudless/cloudless/internal/state"
)

// stateWithServers is the state of a cluster whose nodes get subnets of 10.64.0.0/10 and fd00:1::/48.
func stateWithServers(t *testing.T, hosts ...string) *state.Snapshot {
	t.Helper()
	var b state.Batch
	b.Create(&v1.Cluster{Metadata: &v1.Metadata{Uid: "home", Name: "cloudless"}, Spec: &v1.ClusterSpec{RangeV4: "10.64.0.0/10", RangeV6: "fd00:1::/48"}})
	for i, host := range hosts {
		name := fmt.Sprint("s-", i+1)
		b.Create(&v1.Server{Metadata: &v1.Metadata{Uid: name, Name: name}, Spec: &v1.ServerSpec{Address: host + ":7700"}})
	}
	store := state.New()
	_, err := store.Apply(1, b.Transaction(time.Now()))
	must.Succeed(t, err)
	return store.Snapshot()
}

// A node gets subnets that its machine does not use, if there are any.
func TestSubnetsAvoidNetworksOfTheMachine(t *testing.T) {
	snap := stateWithServers(t)
	for want, machines := range map[string][][]string{
		"10.64.5.0/24": {{"10.64.0.0/22", "10.64.4.7/32", "garbage", "fd00::/8"}, {"10.64.0.0/22", "10.64.4.7/32"}},
		"10.64.0.0/24": {{"10.0.0.0/8"}}, // the machine uses all of them
	} {
		for _, used := range machines {
			all, err := newSubnets(snap)
			must.Succeed(t, err)
			if v4, _, err := all.next(used); err != nil || v4.String() != want {
				t.Errorf("a machine that uses %v gets %v, %v", used, v4, err)
			}
		}
	}
}

// A node whose subnet contained the address of a server could not reach the server. So nodes get no such subnet, not
// even on a machine that uses all others.
func TestSubnetsAvoidAddressesOfServers(t *testing.T) {
	snap := stateWithServers(t, "10.64.0.10", "[::ffff:10.64.1.10]", "[fd00:1::1]", "somewhere.example")
	for _, used := range [][]string{nil, {"10.0.0.0/8"}} {
		all, err := newSubnets(snap)
		must.Succeed(t, err)
		v4, v6, err := all.next(used)
		must.Succeed(t, err)
		if v4.String() != "10.64.2.0/24" || v6.Addr() == all.range6.Addr() {
			t.Errorf("a machine that uses %v gets %v and %v", used, v4, v6)
		}
	}
}

package server

import (
	"sync"
	"testing"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/server/core"
)

// All machines of a rack that is switched on can join at once.
func TestManyMachinesJoinAtOnce(t *testing.T) {
	const machines = 300
	c := newCluster(t)
	token := c.newTokenSecret(&v1.CreateTokenRequest{Name: "rack", Role: core.RoleNode, Uses: machines})
	anyone := c.dial(nil, "")
	var mu sync.Mutex
	var all sync.WaitGroup
	names, v4, v6 := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for range machines {
		all.Go(func() {
			_, csr, err := identity.NewKeyAndCSR()
			check(t, err)
			answer, err := anyone.Enroll(c.ctx, &v1.EnrollRequest{Token: token, Csr: csr, Name: "machine"})
			check(t, err)
			mu.Lock()
			defer mu.Unlock()
			names[answer.GetNode().GetMetadata().GetName()] = true
			v4[answer.GetNode().GetSpec().GetSubnetV4()] = true
			v6[answer.GetNode().GetSpec().GetSubnetV6()] = true
		})
	}
	all.Wait()
	if len(names) != machines || len(v4) != machines || len(v6) != machines {
		t.Errorf("%d machines have %d names, %d and %d subnets", machines, len(names), len(v4), len(v6))
	}
	snap := c.Store.Snapshot()
	if used := snap.TokenByName("rack").GetStatus().GetUsed(); used != machines {
		t.Errorf("the token counts %d uses", used)
	}
	if snap.NodeByName("machine-300") == nil || v4["10.64.0.0/24"] == false || v4["10.65.43.0/24"] == false {
		t.Error("names or subnets have holes")
	}
}

func TestConcurrentCallsOfOneMachineCreateOneNode(t *testing.T) {
	c := newCluster(t)
	token := c.newTokenSecret(&v1.CreateTokenRequest{Name: "join", Role: core.RoleNode, Uses: 10})
	_, csr, err := identity.NewKeyAndCSR()
	must(t, err)
	anyone := c.dial(nil, "")
	var mu sync.Mutex
	var all sync.WaitGroup
	uids := map[string]bool{}
	for range 10 {
		all.Go(func() {
			answer, err := anyone.Enroll(c.ctx, &v1.EnrollRequest{Token: token, Csr: csr, Name: "machine"})
			check(t, err)
			mu.Lock()
			defer mu.Unlock()
			uids[answer.GetNode().GetMetadata().GetUid()] = true
		})
	}
	all.Wait()
	if used := c.Store.Snapshot().TokenByName("join").GetStatus().GetUsed(); len(uids) != 1 || used != 1 {
		t.Errorf("it is %d nodes and has used the token %d times", len(uids), used)
	}
}

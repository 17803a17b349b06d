package server

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
)

// probing is an agent that answers probes with the given results.
func probing(result *v1.NetworkProbe) serveOpen {
	return func(open *v1.Open, stream attachClient) {
		asked := open.GetNetworkProbe()
		found := &v1.NetworkProbe{Listens: result.GetListens(), DroppedNow: result.GetDroppedNow(), Addresses: result.GetAddresses(), Path: result.GetPath()}
		for _, address := range asked.GetConnect() {
			c := &v1.ConnectResult{Address: address, Latency: "1ms"}
			if result.GetListens() != "all" { // then nothing is reached
				c = &v1.ConnectResult{Address: address, Error: "connection refused"}
			}
			found.Connects = append(found.Connects, c)
		}
		_ = stream.Send(&v1.AttachUp{Message: &v1.AttachUp_NetworkProbe{NetworkProbe: found}})
		awaitEnd(stream)
	}
}

// said are the parts of a check, one line each.
func said(check *v1.NetworkCheck) string {
	var lines []string
	for _, h := range check.GetHops() {
		lines = append(lines, fmt.Sprintf("%s %s: %s", h.GetHop(), h.GetState(), h.GetMessage()))
	}
	return strings.Join(lines, "\n")
}

func TestNetworkCheckNamesTheFailingPart(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	var result atomic.Pointer[v1.NetworkProbe]
	result.Store(&v1.NetworkProbe{Listens: "all", Path: &v1.PeerPath{State: "direct", Address: "192.0.2.2:7701", Latency: "1ms"}})
	for _, name := range []string{"n1", "n2"} {
		c.work(name, func(open *v1.Open, stream attachClient) { probing(result.Load())(open, stream) })
	}
	c.create(op, workload("web", replicasOf(2)))
	network := v1.NewConnectivityServiceClient(op.conn)
	check := func(request *v1.CheckNetworkRequest) (ok bool, text string) {
		t.Helper()
		got, err := network.CheckNetwork(c.ctx, request)
		must(t, err)
		return got.GetOk(), said(got)
	}
	request := &v1.CheckNetworkRequest{From: "web", To: "web", Port: 8080}
	if _, text := check(request); !strings.Contains(text, "from ok: replica web-") || !strings.Contains(text, "listen ok: ") || !strings.Contains(text, "filter ok: ") {
		t.Errorf("the check says\n%s", text)
	}
	result.Store(&v1.NetworkProbe{Listens: "loopback"})
	if ok, text := check(request); ok || !strings.Contains(text, "listen failed: replica web-") || !strings.Contains(text, "only of its own 127.0.0.1") {
		t.Errorf("the check says\n%s", text)
	}
	result.Store(&v1.NetworkProbe{Listens: "none", DroppedNow: []*v1.DroppedPackets{{WorkloadUid: "uid", Rule: "no-path", Reason: "There is no encrypted path.", Packets: 3}}})
	if ok, text := check(request); ok || !strings.Contains(text, "filter failed: rule no-path of node") {
		t.Errorf("the check says\n%s", text)
	}
	for words, request := range map[string]*v1.CheckNetworkRequest{
		"from failed: workload nobody does not exist":            {From: "nobody", To: "web"},
		"to failed: workload nobody does not exist":              {From: "web", To: "nobody"},
		"to failed: workload web has no port to connect to":      {From: "web", To: "web"},
		"to failed: workload web does not exist in namespace sh": {From: "web", To: "web.shop"},
	} {
		if ok, text := check(request); ok || !strings.Contains(text, words) {
			t.Errorf("%v says\n%s", request, text)
		}
	}
	_, err := v1.NewConnectivityServiceClient(c.as(core.RoleViewer).conn).CheckNetwork(c.ctx, request)
	wantCode(t, err, codes.PermissionDenied, "operator")
}

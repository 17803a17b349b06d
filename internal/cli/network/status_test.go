package network

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/cli/command"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

var threeNodes = []*cloudlessv1.NodeNetwork{
	{
		Node: "one", Direct: 1, Relayed: 1, Idle: 2, SentBytes: 5_000_000, ReceivedBytes: 1000,
		Relays: []*cloudlessv1.RelayPath{{Server: "192.0.2.9:7700"}, {Server: "192.0.2.1:7700", Home: true, Connected: true, Latency: "2ms"}},
		Peers: []*cloudlessv1.PeerPath{
			{
				Peer: "two", State: "direct", Address: "192.0.2.2:7701", Latency: "1.2ms", SentBytes: 5_000_000, SentBytesPerSecond: 2000,
				LastHandshake: timestamppb.New(now.Add(-40 * time.Second)),
			},
			{Peer: "three", State: "relayed", Latency: "30ms", WhyNotDirect: "192.0.2.3:7701 does not answer"},
		},
	},
	{Node: "two", Down: 1, Peers: []*cloudlessv1.PeerPath{{Peer: "one", State: "down", WhyNotDirect: "the peer has announced no address"}}},
	{Node: "three", Error: "node three is not connected"},
}

func printed(print func(*command.Env) error) string {
	var out bytes.Buffer
	e := &command.Env{Stdout: &out, Stderr: &out}
	if err := print(e); err != nil {
		return err.Error()
	}
	return out.String()
}

func TestStatusShowsEachPeer(t *testing.T) {
	got := printed(func(e *command.Env) error { return printPeers(e, threeNodes, now) })
	want := `NODE   PEER   STATE    ADDRESS         LATENCY  SENT               RECEIVED  HANDSHAKE  WHY NOT DIRECT
one    two    direct   192.0.2.2:7701  1.2ms    5.0 MB (2.0 KB/s)  0 B       40s ago    -
one    three  relayed  -               30ms     0 B                0 B       -          192.0.2.3:7701 does not answer
two    one    down     -               -        0 B                0 B       -          the peer has announced no address
three  -      unknown  -               -        -                  -         -          node three is not connected
2 paths without traffic are not shown; show them with --all
`
	if got != want {
		t.Errorf("printed\n%s", got)
	}
}

func TestStatusOfALargeClusterShowsEachNode(t *testing.T) {
	got := printed(func(e *command.Env) error { return printNodes(e, threeNodes) })
	want := `NODE   DIRECT  RELAYED  DOWN  IDLE  SENT               RECEIVED  RELAY                 PROBLEM
one    1       1        0     2     5.0 MB (2.0 KB/s)  1.0 KB    192.0.2.1:7700 (2ms)  -
two    0       0        1     0     0 B                0 B       -                     one: the peer has announced no address
three  -       -        -     -     -                  -         -                     node three is not connected
show the peers of one node with: cloudless network status --node NAME
`
	if got != want {
		t.Errorf("printed\n%s", got)
	}
	if summarized(threeNodes) {
		t.Error("four rows are too many")
	}
	var large []*cloudlessv1.NodeNetwork
	for i := range maxRows {
		large = append(large, &cloudlessv1.NodeNetwork{Node: fmt.Sprint(i), Peers: make([]*cloudlessv1.PeerPath, 2)})
	}
	if !summarized(large) {
		t.Error("hundreds of rows are not summarized")
	}
}

func TestStatusOfALoneNode(t *testing.T) {
	got := printed(func(e *command.Env) error { return printPeers(e, []*cloudlessv1.NodeNetwork{{Node: "one"}}, now) })
	if !strings.Contains(got, "no node has a peer") {
		t.Errorf("printed %q", got)
	}
}

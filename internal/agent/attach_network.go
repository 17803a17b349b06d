package agent

import (
	"context"
	"errors"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/mesh"
	"github.com/cloudless/cloudless/internal/nodenet"
)

// serveNetworkStatus answers what the node's network does now.
func (a *Agent) serveNetworkStatus(ctx context.Context, at *attachment, open *v1.OpenNetworkStatus) error {
	at.listen(nil)
	found, err := a.networkStatus(ctx, open.GetAll())
	if err != nil {
		return at.refuse(err)
	}
	if err := at.send(&v1.AttachUp{Message: &v1.AttachUp_NetworkStatus{NetworkStatus: found}}); err != nil {
		return err
	}
	return at.finish()
}

var errNoMesh = errors.New("this node is not in the mesh")

func (a *Agent) networkStatus(ctx context.Context, all bool) (*v1.NodeNetwork, error) {
	if a.mesh == nil {
		return nil, errNoMesh
	}
	status, err := a.mesh.Status(ctx, all)
	if err != nil {
		return nil, err
	}
	dropped, err := a.network.Drops()
	if err != nil {
		return nil, err
	}
	n := &v1.NodeNetwork{
		Direct: int32(status.States[mesh.StateDirect]), Relayed: int32(status.States[mesh.StateRelayed]),
		Down: int32(status.States[mesh.StateDown]), Idle: int32(status.States[mesh.StateIdle]), Port: int32(status.Port),
		SentBytes: int64(status.Totals.Sent), ReceivedBytes: int64(status.Totals.Received), Handshakes: int64(status.Totals.Handshakes),
		Drops: dropsFrom(dropped),
	}
	for _, p := range status.Peers {
		n.Peers = append(n.Peers, pathFrom(p))
	}
	for _, r := range status.Relays {
		n.Relays = append(n.Relays, &v1.RelayPath{Server: r.Address, Connected: r.Connected, Home: r.Home, Latency: latency(r.RoundTrip)})
	}
	return n, nil
}

func pathFrom(p mesh.PeerStatus) *v1.PeerPath {
	path := &v1.PeerPath{
		Peer: p.Name, State: string(p.State), Latency: latency(p.RoundTrip), WhyNotDirect: p.WhyNot, Mtu: int32(p.MTU),
		SentBytesPerSecond: int64(p.SentRate), ReceivedBytesPerSecond: int64(p.ReceivedRate),
		SentBytes: int64(p.Sent), ReceivedBytes: int64(p.Received),
	}
	if p.Address.IsValid() {
		path.Address = p.Address.String()
	}
	if !p.Handshake.IsZero() {
		path.LastHandshake = timestamppb.New(p.Handshake)
	}
	return path
}

// latency is a round trip in a few digits, empty if it was not measured.
func latency(d time.Duration) string {
	switch {
	case d == 0:
		return ""
	case d < 10*time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	}
	return d.Round(100 * time.Microsecond).String()
}

func dropsFrom(list []nodenet.Drop) (all []*v1.DroppedPackets) {
	for _, d := range list {
		all = append(all, &v1.DroppedPackets{
			Workload: d.Owner, WorkloadUid: d.Group, Rule: d.Rule, Reason: d.Reason, Packets: int64(d.Packets), Bytes: int64(d.Bytes),
		})
	}
	return all
}

package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/driver"
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

// probePatience is how long a connection or a lookup of a probe may take.
const probePatience = 3 * time.Second

// serveNetworkProbe tries the network from inside a replica.
func (a *Agent) serveNetworkProbe(ctx context.Context, at *attachment, open *v1.OpenNetworkProbe) error {
	at.listen(nil)
	found, err := a.probeNetwork(ctx, open)
	if err != nil {
		return at.refuse(err)
	}
	if err := at.send(&v1.AttachUp{Message: &v1.AttachUp_NetworkProbe{NetworkProbe: found}}); err != nil {
		return err
	}
	return at.finish()
}

func (a *Agent) probeNetwork(ctx context.Context, open *v1.OpenNetworkProbe) (*v1.NetworkProbe, error) {
	r, task, err := a.runningTask(open.GetReplicaUid())
	if err != nil {
		return nil, err
	}
	dialer, able := r.driver.(driver.Dialer)
	if !able {
		return nil, fmt.Errorf("replica %s runs by driver %q, whose network cannot be tried", r.name(), r.driver.Name())
	}
	p := prober{dialer: dialer, task: task, udp: open.GetProtocol() == "udp", found: &v1.NetworkProbe{}}
	if open.GetPeer() != "" {
		p.found.Path, err = a.probePeer(ctx, open.GetPeer())
		if err != nil {
			p.found.PathError = sentence(err.Error())
		}
	}
	before, err := a.network.Drops()
	if err != nil {
		return nil, err
	}
	if open.GetLookup() != "" {
		a.meshState.mu.Lock()
		node := a.meshState.node
		a.meshState.mu.Unlock()
		p.lookUp(ctx, node, open.GetLookup())
	}
	p.connectAll(ctx, open.GetConnect())
	if open.GetListens() != 0 {
		p.found.Listens = p.listens(ctx, insideAddresses(r), uint16(open.GetListens()))
	}
	after, err := a.network.Drops()
	if err != nil {
		return nil, err
	}
	workload := r.wanted().assignment.GetReplica().GetSpec().GetWorkloadUid()
	after = dropsOf(after, workload)
	p.found.Drops, p.found.DroppedNow = dropsFrom(after), dropsFrom(dropsSince(before, after))
	return p.found, nil
}

func (a *Agent) probePeer(ctx context.Context, id string) (*v1.PeerPath, error) {
	if a.mesh == nil {
		return nil, errNoMesh
	}
	ctx, cancel := context.WithTimeout(ctx, 2*probePatience)
	defer cancel()
	found, err := a.mesh.Probe(ctx, id)
	if err != nil {
		return nil, err
	}
	return pathFrom(found), nil
}

// dropsOf lists the dropped packets of one workload and of none, by rule.
func dropsOf(all []nodenet.Drop, workload string) []nodenet.Drop {
	return slices.DeleteFunc(slices.Clone(all), func(d nodenet.Drop) bool { return d.Group != workload && d.Group != "" })
}

// dropsSince are the packets that were dropped between two counts.
func dropsSince(before, after []nodenet.Drop) (now []nodenet.Drop) {
	for _, d := range after {
		if i := slices.IndexFunc(before, func(b nodenet.Drop) bool { return b.Group == d.Group && b.Rule == d.Rule }); i >= 0 {
			d.Packets, d.Bytes = d.Packets-before[i].Packets, d.Bytes-before[i].Bytes
		}
		if d.Packets > 0 {
			now = append(now, d)
		}
	}
	return now
}

// prober tries the network from inside a task.
type prober struct {
	dialer driver.Dialer
	task   string
	udp    bool
	found  *v1.NetworkProbe
}

// connectAll tries all addresses at the same time.
func (p *prober) connectAll(ctx context.Context, addresses []string) {
	p.found.Connects = make([]*v1.ConnectResult, len(addresses))
	var work sync.WaitGroup
	for i, text := range addresses {
		work.Go(func() {
			result := &v1.ConnectResult{Address: text}
			began := time.Now()
			address, err := netip.ParseAddrPort(text)
			answered := !p.udp
			switch {
			case err != nil:
			case p.udp:
				answered, err = p.sendDatagram(ctx, address)
			default:
				err = p.connect(ctx, address)
			}
			switch {
			case err != nil:
				result.Error = sentence(err.Error())
			case answered:
				result.Latency = latency(time.Since(began))
			}
			p.found.Connects[i] = result
		})
	}
	work.Wait()
}

func (p *prober) connect(ctx context.Context, to netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(ctx, probePatience)
	defer cancel()
	conn, err := p.dialer.Dial(ctx, p.task, "tcp", to)
	switch {
	case err == nil:
		return conn.Close()
	case ctx.Err() != nil:
		return fmt.Errorf("no answer within %s", probePatience)
	}
	return cause(err)
}

// datagramPatience is how long an answer to a datagram may take. A refusal arrives as fast as an answer.
const datagramPatience = time.Second

// sendDatagram sends an empty datagram. Most programs answer nothing, so only a refusal is an error.
func (p *prober) sendDatagram(ctx context.Context, to netip.AddrPort) (answered bool, err error) {
	conn, err := p.dialer.Dial(ctx, p.task, "udp", to)
	if err != nil {
		return false, cause(err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(datagramPatience)); err != nil {
		return false, err
	}
	if _, err := conn.Write(nil); err != nil {
		return false, cause(err)
	}
	_, err = conn.Read(make([]byte, 1))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return false, nil
	}
	return err == nil, cause(err)
}

// listens says where the task accepts connections or datagrams.
func (p *prober) listens(ctx context.Context, addresses []netip.Addr, port uint16) string {
	where := "none"
	for _, a := range addresses {
		if !p.accepts(ctx, netip.AddrPortFrom(a, port)) {
			continue
		}
		if !a.IsLoopback() {
			return "all"
		}
		where = "loopback"
	}
	return where
}

func (p *prober) accepts(ctx context.Context, at netip.AddrPort) bool {
	if p.udp {
		_, err := p.sendDatagram(ctx, at)
		return err == nil
	}
	return p.connect(ctx, at) == nil
}

// lookUp asks the resolver of the node.
func (p *prober) lookUp(ctx context.Context, node *v1.NodeSpec, name string) {
	subnet, err := netip.ParsePrefix(node.GetSubnetV4())
	if err == nil {
		server := netip.AddrPortFrom(subnet.Masked().Addr().Next(), nodenet.DNSPort)
		for _, kind := range []uint16{dns.TypeA, dns.TypeAAAA} {
			var found []string
			if found, err = p.exchange(ctx, server, name, kind); err != nil {
				break
			}
			p.found.Addresses = append(p.found.Addresses, found...)
		}
	}
	if err != nil {
		p.found.LookupError = sentence(err.Error())
	}
}

func (p *prober) exchange(ctx context.Context, server netip.AddrPort, name string, kind uint16) (addresses []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, probePatience)
	defer cancel()
	conn, err := p.dialer.Dial(ctx, p.task, "udp", server)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	question := new(dns.Msg).SetQuestion(dns.Fqdn(name), kind)
	answer, _, err := (&dns.Client{}).ExchangeWithConnContext(ctx, question, &dns.Conn{Conn: conn})
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return nil, fmt.Errorf("nothing listens on %v", server)
	case err != nil:
		return nil, fmt.Errorf("the resolver at %v does not answer: %w", server, err)
	case answer.Rcode != dns.RcodeSuccess:
		return nil, fmt.Errorf("the resolver at %v says %s", server, dns.RcodeToString[answer.Rcode])
	}
	for _, record := range answer.Answer {
		switch r := record.(type) {
		case *dns.A:
			addresses = append(addresses, r.A.String())
		case *dns.AAAA:
			addresses = append(addresses, r.AAAA.String())
		}
	}
	return addresses, nil
}

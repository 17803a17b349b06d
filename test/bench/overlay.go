package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"syscall"
	"time"

	"github.com/cloudless/cloudless/internal/mesh"
	"github.com/cloudless/cloudless/internal/sleep"
)

const (
	overlayRounds = 5
	overlayTime   = 3 // seconds of each transfer
	overlayTries  = 10
	overlayLimit  = 15 * time.Second // a transfer that takes longer does not work
	iperfPort     = "5201"
)

// network are the addresses of the two machines on a link that is not ours. They are link-local, because the mesh would
// take any other link for a direct path, and measure one tunnel inside of another.
type network string

const (
	bareLinks  network = "169.254.1."
	vxlanLinks network = "169.254.2."
)

func (n network) address(i int) string { return fmt.Sprint(n, i+1) }

// way is one way from the first machine to the second.
type way struct {
	name     string
	from, to string // network namespaces
	address  string
	speeds   sample // in Gbit/s
	broken   bool
}

// measureOverlay compares ways between the same two machines, in turns.
func measureOverlay(ctx context.Context, l *lab) (_ result, err error) {
	p, err := l.newPair(ctx, "overlay")
	if err != nil {
		return result{}, err
	}
	defer p.close()
	if err := p.untilPath(ctx, "direct"); err != nil {
		return result{}, err
	}
	stop, err := p.bareWireGuard(ctx)
	if err != nil {
		return result{}, err
	}
	defer stop()
	if err := p.vxlan(); err != nil {
		return result{}, err
	}
	one, two := "/run/netns/"+p.spaces[0], "/run/netns/"+p.spaces[1]
	ways := []*way{
		{name: "replicas", from: p.network[0], to: p.network[1], address: p.replica[1]},
		{name: "bare wireguard-go", from: one, to: two, address: bareLinks.address(1)},
		{name: "raw veth", from: one, to: two, address: p.address(1)},
		{name: "VXLAN", from: one, to: two, address: vxlanLinks.address(1)},
	}
	for range overlayRounds {
		for i, w := range ways {
			if w.broken {
				continue
			}
			if err := w.transfer(ctx); err != nil && i < 2 {
				return result{}, err
			} else if err != nil { // for comparison only
				w.broken = true
				l.say("%v", err)
			}
		}
	}
	r := result{value: ways[0].speeds.median(), floor: ways[1].speeds.median()}
	for _, w := range ways {
		if len(w.speeds) == 0 {
			r.notes = append(r.notes, w.name+" did not work on this machine")
			continue
		}
		r.notes = append(r.notes, w.speeds.spread(w.name+" in Gbit/s"))
	}
	return r, nil
}

// transfer measures one TCP connection.
func (w *way) transfer(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, overlayLimit)
	defer cancel()
	server := inNetwork(ctx, w.to, "iperf3", "-s", "-1", "-p", iperfPort, "-B", w.address)
	if err := server.Start(); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = server.Process.Kill()
		}
		_ = server.Wait()
	}()
	for try := 1; ; try++ { // until the server listens
		out, err := inNetwork(ctx, w.from, "iperf3", "-c", w.address, "-p", iperfPort, "-t", fmt.Sprint(overlayTime), "-J").Output()
		var speed float64
		if err == nil {
			speed, err = receivedSpeed(out)
		}
		if err != nil && try < overlayTries {
			if err := sleep.For(ctx, 50*time.Millisecond); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("iperf3 over %s: %w: %s", w.name, err, out)
		}
		w.speeds = append(w.speeds, speed)
		return nil
	}
}

// receivedSpeed reads a report of iperf3, in Gbit/s. It may name an error although iperf3 has exited with 0, such as that
// the server does not listen yet.
func receivedSpeed(report []byte) (float64, error) {
	var read struct {
		Error string
		End   struct {
			Received struct {
				Bits float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		}
	}
	if err := json.Unmarshal(report, &read); err != nil {
		return 0, err
	}
	if read.Error != "" {
		return 0, errors.New(read.Error)
	}
	return read.End.Received.Bits / 1e9, nil
}

// bareWireGuard connects the machines by bareLinks.
func (p *pair) bareWireGuard(ctx context.Context) (stop func(), err error) {
	program, err := p.lab.build(ctx, "wireguard", "./test/bench/wireguard")
	if err != nil {
		return nil, err
	}
	var keys [2]mesh.PrivateKey
	for i := range keys {
		if keys[i], err = mesh.NewPrivateKey(); err != nil {
			return nil, err
		}
	}
	var running []*exec.Cmd
	stop = func() {
		for _, one := range running {
			_ = one.Process.Signal(syscall.SIGTERM)
			_ = one.Wait()
		}
	}
	for i := range keys {
		other := 1 - i
		public := keys[other].Public()
		cmd := p.in(ctx, i, program, "bare0", fmt.Sprintf("%x", keys[i].Bytes()), "7000", fmt.Sprintf("%x", public[:]),
			p.address(other)+":7000", bareLinks.address(other)+"/32")
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			stop()
			return nil, err
		}
		running = append(running, cmd)
		if _, err := out.Read(make([]byte, 3)); err != nil { // until it is up
			stop()
			return nil, fmt.Errorf("start bare wireguard-go: %w", err)
		}
		for _, step := range [][]string{{"address", "add", bareLinks.address(i) + "/24", "dev", "bare0"}, {"link", "set", "bare0", "up"}} {
			if err := ip(append([]string{"-n", p.spaces[i]}, step...)...); err != nil {
				stop()
				return nil, err
			}
		}
	}
	return stop, nil
}

// vxlan connects the machines by vxlanLinks.
func (p *pair) vxlan() error {
	for i, space := range p.spaces {
		for _, step := range [][]string{
			{"link", "add", "vxlan0", "type", "vxlan", "id", "7", "remote", p.address(1 - i), "dstport", "4789", "dev", "eth0"},
			{"address", "add", vxlanLinks.address(i) + "/24", "dev", "vxlan0"},
			{"link", "set", "vxlan0", "up"},
		} {
			if err := ip(append([]string{"-n", space}, step...)...); err != nil {
				return err
			}
		}
	}
	return nil
}

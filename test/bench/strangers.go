package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/cloudless/cloudless/internal/sleep"
)

const (
	// strangerShare is how much of one core the attackers have.
	strangerShare  = 0.5
	strangerRounds = 6
	// strangerTime is how long writes are counted in each round, strangerWarm how long the attack lasts before that.
	strangerTime = 5 * time.Second
	strangerWarm = 3 * time.Second
	// memoryTime is how long the server is attacked without writes, to measure its memory.
	memoryTime = 45 * time.Second
	// rssPause is between two measurements of the server's memory.
	rssPause = 100 * time.Millisecond
	// strangerMemory is how many MB the attacks may cost.
	strangerMemory = 200
)

// measureStrangers counts the writes of 64 clients with a token while strangers attack the server, alternating with the
// same while something else uses as much CPU. The memory cost of the attacks is measured before the first write,
// because writes need more.
func measureStrangers(ctx context.Context, l *lab) (result, error) {
	c, err := l.newCloud(ctx, "strangers")
	if err != nil {
		return result{}, err
	}
	defer c.close()
	attacker, err := l.build(ctx, "stranger", "./test/bench/stranger")
	if err != nil {
		return result{}, err
	}
	image, err := c.pushed(ctx)
	if err != nil {
		return result{}, err
	}
	pid, err := c.pid()
	if err != nil {
		return result{}, err
	}
	s := &siege{attacker: attacker, address: c.address, pid: pid}
	if err := s.weigh(ctx); err != nil {
		return result{}, err
	}
	clients, hangUp, err := c.connectMany(ctx, writeClients)
	if err != nil {
		return result{}, err
	}
	defer hangUp()
	s.writes = &load{name: "labels of a workload updated", call: updateWorkload(clients, image)}
	if _, err := s.writes.run(ctx, writeWarm); err != nil {
		return result{}, err
	}
	for range strangerRounds {
		for _, attack := range []bool{false, true} {
			if err := s.round(ctx, attack); err != nil {
				return result{}, err
			}
		}
	}
	return s.result(), nil
}

// siege is one server with writers and attackers.
type siege struct {
	attacker, address string
	pid               int // of the server
	writes            *load

	quiet, attacked sample  // writes a second
	before, most    float64 // MB of the server before attacks and during one
	reports         []strangerReport
}

// strangerReport is an attacker's final report, see test/bench/stranger.
type strangerReport struct {
	Share        float64
	Done, Failed map[string]int
}

func (s *siege) result() result {
	verdict := "within"
	if s.most-s.before >= strangerMemory {
		verdict = "beyond"
	}
	return result{
		value: s.attacked.median(), floor: s.quiet.median(),
		notes: []string{
			s.attacked.spread("writes a second under attack"),
			s.quiet.spread("writes a second beside a busy loop"),
			fmt.Sprintf("extra server memory: %.4g MB, %s the limit of %d MB: at most %.4g MB in %s of attacks, %.4g MB before",
				s.most-s.before, verdict, strangerMemory, s.most, memoryTime, s.before),
			"attackers: " + summary(s.reports),
		},
	}
}

// weigh measures the memory of a server that is only attacked.
func (s *siege) weigh(ctx context.Context) error {
	if err := sleep.For(ctx, idleSettle); err != nil {
		return err
	}
	rss, err := procStatus(s.pid, "VmRSS")
	if err != nil {
		return err
	}
	s.before = megabytes(rss)
	report, err := s.beside(ctx, true, func() error {
		for until := time.Now().Add(memoryTime); time.Now().Before(until); {
			rss, err := procStatus(s.pid, "VmRSS")
			if err != nil {
				return err
			}
			s.most = max(s.most, megabytes(rss))
			if err := sleep.For(ctx, rssPause); err != nil {
				return err
			}
		}
		return nil
	})
	s.reports = append(s.reports, report)
	return err
}

// round counts writes while something else uses its share of the CPU.
func (s *siege) round(ctx context.Context, attack bool) error {
	var rate float64
	report, err := s.beside(ctx, attack, func() (err error) {
		if _, err = s.writes.run(ctx, strangerWarm); err == nil {
			rate, err = s.writes.run(ctx, strangerTime)
		}
		return err
	})
	if err != nil {
		return err
	}
	if attack {
		s.attacked, s.reports = append(s.attacked, rate), append(s.reports, report)
	} else {
		s.quiet = append(s.quiet, rate)
	}
	return nil
}

// beside does something while the attacker attacks, or only uses the CPU.
func (s *siege) beside(ctx context.Context, attack bool, do func() error) (r strangerReport, err error) {
	args := []string{"-share", fmt.Sprint(strangerShare)}
	if attack {
		args = append(args, s.address)
	}
	cmd := exec.CommandContext(ctx, s.attacker, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = cleanupTime
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		return r, err
	}
	err = errors.Join(do(), cmd.Process.Signal(syscall.SIGTERM), cmd.Wait())
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		return r, fmt.Errorf("read what the attacker says: %w", err)
	}
	return r, nil
}

// summary says what the attackers have done in all rounds.
func summary(reports []strangerReport) string {
	var share sample
	done, failed := map[string]int{}, map[string]int{}
	for _, r := range reports {
		share = append(share, r.Share)
		for name, n := range r.Done {
			done[name] += n
			failed[name] += r.Failed[name]
		}
	}
	parts := []string{fmt.Sprintf("%.2f of a core", share.median())}
	for _, name := range slices.Sorted(maps.Keys(done)) {
		parts = append(parts, fmt.Sprintf("%s %d times, %d without a connection", name, done[name], failed[name]))
	}
	return strings.Join(parts, ", ")
}

package nodenet

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"
)

// PortError says who has a port that was to be published.
type PortError struct {
	Port string // such as "8080" or "53/udp"
	User string // who has it, in words
}

func (e *PortError) Error() string {
	return fmt.Sprintf("port %s is used by %s; choose another with --publish, or free it and the replica starts by itself", e.Port, e.User)
}

// claims are the machine's ports that groups have, each held by a socket so that no other
// program can have it.
type claims struct {
	backends func(portKey) []netip.AddrPort
	log      *slog.Logger

	mu     sync.Mutex
	byPort map[portKey]*claim
}

// claim is a port of one group.
type claim struct {
	group, owner string
	users        map[string]bool // uids
	hold         *hold           // nil if another program has the port
}

func newClaims(backends func(portKey) []netip.AddrPort, log *slog.Logger) *claims {
	return &claims{backends: backends, log: log, byPort: map[portKey]*claim{}}
}

// take gives the endpoint its ports, all or none. An endpoint that served before gets its
// ports even if they cannot be held.
func (c *claims) take(e Endpoint, served bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for i, p := range e.Ports {
		err := c.takeOne(e, p.key(), served)
		if err == nil {
			continue
		}
		if !served {
			for _, taken := range e.Ports[:i] {
				c.drop(taken.key(), e.UID)
			}
			return err
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (c *claims) takeOne(e Endpoint, key portKey, served bool) error {
	for other, have := range c.byPort {
		if other.overlaps(key) && have.group != e.Group {
			return &PortError{Port: key.String(), User: have.owner}
		}
	}
	have := c.byPort[key]
	if have != nil && have.hold != nil {
		have.users[e.UID] = true
		return nil
	}
	held, err := c.holdPort(key)
	if errors.Is(err, unix.EADDRINUSE) {
		err = &PortError{Port: key.String(), User: userOf(key)}
	} else if err != nil {
		err = fmt.Errorf("hold port %v: %w", key, err)
	}
	if err != nil && !served {
		return err
	}
	if have == nil {
		have = &claim{group: e.Group, owner: e.Owner, users: map[string]bool{}}
		c.byPort[key] = have
	}
	have.users[e.UID], have.hold = true, held
	return err
}

// holdAgain tries to hold the ports that other programs had, and reports whether none is
// left.
func (c *claims) holdAgain() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := true
	for key, have := range c.byPort {
		if have.hold == nil {
			have.hold, _ = c.holdPort(key)
			all = all && have.hold != nil
		}
	}
	return all
}

// has reports whether somebody has a port.
func (c *claims) has(uid string, key portKey) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	have := c.byPort[key]
	return have != nil && have.users[uid]
}

func (c *claims) release(uid string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key := range c.byPort {
		c.drop(key, uid)
	}
}

// drop releases a port with its last user.
func (c *claims) drop(key portKey, uid string) {
	have := c.byPort[key]
	if have == nil {
		return
	}
	delete(have.users, uid)
	if len(have.users) > 0 {
		return
	}
	if have.hold != nil {
		have.hold.close()
	}
	delete(c.byPort, key)
}

func (c *claims) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, have := range c.byPort {
		if have.hold != nil {
			have.hold.close()
			have.hold = nil
		}
	}
}

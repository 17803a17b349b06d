package identity

import (
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"time"
)

const (
	// ticketPeriod is how long a key seals new tickets. It opens them for one period more.
	ticketPeriod = 24 * time.Hour
	ticketInfo   = "cloudless/tls session tickets/"
)

// TicketKeys are the keys with which servers seal the session tickets of TLS clients, newest first. All servers of a
// cluster have the same ones at the same time, and have them again after a restart, so that the clients of a dead
// server need no full handshake with the next one. They are derived from the CA's key, so their holders could derive
// them anyway.
func (c *CA) TicketKeys(now time.Time) ([][32]byte, error) {
	secret, err := c.MarshalKey()
	if err != nil {
		return nil, err
	}
	defer clear(secret)
	period := now.Unix() / int64(ticketPeriod/time.Second)
	keys := make([][32]byte, 0, 3)
	// The next one, too: the clock of another server may be ahead.
	for _, p := range []int64{period, period - 1, period + 1} {
		key, err := hkdf.Key(sha256.New, secret, nil, fmt.Sprintf("%s%s/%d", ticketInfo, c.trust.cluster, p), 32)
		if err != nil {
			return nil, fmt.Errorf("derive a key for session tickets: %w", err)
		}
		keys = append(keys, [32]byte(key))
	}
	return keys, nil
}

// Resume lets connections by a configuration of [ClientTLS] resume the TLS session of an earlier one, which saves both
// sides most of the handshake. The other side has the keys of [CA.TicketKeys] and so is a server of the cluster, but it
// may be another one than the certificate in the connection's state names: this is not for clients that need a
// particular server.
func Resume(config *tls.Config) *tls.Config {
	config.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	return config
}

package oneport

import (
	"context"
	"crypto/tls"
	"fmt"
	"time"
)

// ticketCheck is how often the keys of session tickets are looked up.
const ticketCheck = time.Hour

// setTicketKeys makes a configuration seal session tickets with the current keys.
func setTicketKeys(config *tls.Config, keys func(time.Time) ([][32]byte, error)) error {
	if keys == nil {
		return nil
	}
	now, err := keys(time.Now())
	if err != nil {
		return fmt.Errorf("keys of session tickets: %w", err)
	}
	config.SetSessionTicketKeys(now)
	return nil
}

// renewTicketKeys keeps the keys current until ctx ends.
func (p *Port) renewTicketKeys(ctx context.Context) {
	ticker := time.NewTicker(ticketCheck)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if err := setTicketKeys(p.tls, p.ticketKeys); err != nil {
				p.log.WarnContext(ctx, "TLS sessions are sealed with old keys", "error", err)
			}
		}
	}
}

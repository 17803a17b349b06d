package e2e

import (
	"context"
	"log/slog"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/cloudless/cloudless/internal/discover"
	"github.com/cloudless/cloudless/internal/identity"
)

// pretend announces a server of the token's cluster at an address where there is none,
// until the script ends:
//
//	pretend $HERE:7701 token
func pretend(ts *testscript.TestScript, _ bool, args []string) {
	token, err := identity.ParseJoinToken(ts.ReadFile(args[1]))
	ts.Check(err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- discover.Announce(ctx, discover.AnnounceOptions{
			Name: "liar", Cluster: token.CA().String(), Listen: args[0], Logger: slog.New(slog.DiscardHandler),
		})
	}()
	ts.Defer(func() {
		cancel()
		if err := <-ended; err != nil {
			ts.Logf("pretend: %v", err)
		}
	})
}

package cli

import (
	"strings"
	"testing"

	"github.com/cloudless/cloudless/client"
)

// Every rm takes several names, and continues after a failure.
func TestRemoveSeveral(t *testing.T) {
	c := newCluster(t)
	c.run(t.Context(), "", "token", "rm", "t1", "ci").expect(t, 0, "token t1 revoked\ntoken ci revoked\n", "")
	if got := c.run(t.Context(), "", "token", "rm"); got.code != 2 {
		t.Errorf("without a name: %+v", got)
	}
	err := client.UpdateConfig(c.config, func(config *client.Config) error {
		config.Set(client.Context{Name: "a"})
		config.Set(client.Context{Name: "b"})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	c.run(t.Context(), "", "context", "rm", "a", "missing", "b").expect(t, 1, "context a removed\ncontext b removed\n",
		"cloudless: context \"missing\" does not exist: there is test, b\n")
	for _, noun := range []string{"workload", "image", "node", "namespace", "server", "token", "context"} {
		if got := runCLI(t.Context(), Options{}, noun, "rm", "--help"); got.code != 0 || !strings.Contains(got.stdout, "cloudless "+noun+" rm NAME...") {
			t.Errorf("%s rm takes one name only: %+v", noun, got)
		}
	}
}

package local

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloudless/cloudless/internal/cli/command"
)

// Flags for servers only, and for nodes only.
var (
	serverFlags = []string{"api-addr", "advertise", "zone", "announce", "election-timeout", "no-node"}
	nodeFlags   = []string{"label", "containerd-address"}
)

// checkRole refuses flags that the role would ignore.
func checkRole(cmd *cobra.Command, role string, noNode bool) error {
	var strange []string
	instead := "is for --role server: leave it out, or join with that role"
	switch {
	case role == "server" && noNode:
		strange, instead = nodeFlags, "is for a node: leave it or --no-node out"
	case role == "server":
	case role == "node":
		strange = serverFlags
	default:
		return command.Usagef(cmd, "--role %q is not known: use node or server", role)
	}
	for _, name := range strange {
		switch {
		case !cmd.Flags().Changed(name):
		case name == "zone":
			return command.Usagef(cmd, "--zone is for --role server: say where a node stands with --label zone=%s", cmd.Flag(name).Value)
		default:
			return command.Usagef(cmd, "--%s %s", name, instead)
		}
	}
	return nil
}

func (c *Commands) Join() *cobra.Command {
	var p processFlags
	var m machineFlags
	var r reachFlags
	var role string
	var discover, noNode bool
	var given joinToken
	cmd := &cobra.Command{
		Use:   "join ADDRESS|--discover --token-file FILE",
		Short: "Make this machine a node or a server of a cluster",
		Long: "Join enrolls this machine with a token of role node and then runs its agent. Before join sends anything secret, it\n" +
			"verifies the server with the token. After a restart of the machine, run cloudless agent.\n\n" +
			"With --role server, and a token of that role, the machine becomes a server: it receives the cluster's state, and\n" +
			"votes once it has caught up. It becomes a node as well, unless --no-node is given. By default the server listens on\n" +
			"port " + DefaultPort + " of the local address that routes to the joined server; --api-addr changes that. After a restart, run\n" +
			"cloudless up, or cloudless server after --no-node.\n\n" +
			"With --discover no address is needed: join finds servers on the same network by multicast DNS. It trusts only\n" +
			"servers of the token's cluster.",
		Example: "  cloudless join 192.0.2.1:7700 --token-file token\n  " + command.TokenEnv + "=… cloudless join 192.0.2.1:7700 --detach\n" +
			"  cloudless join --discover --token-file token --detach\n  cloudless join 192.0.2.1:7700 --token-file token --role server --detach\n" +
			"  cloudless join 192.0.2.1:7700 --token-file token --role server --no-node --detach",
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case discover && len(args) > 0:
				return command.Usagef(cmd, "ADDRESS and --discover exclude each other: leave one out")
			case discover:
				return nil
			case len(args) == 0:
				return command.Usagef(cmd, "ADDRESS of a server is missing; on the same network, --discover finds one")
			}
			return command.ExactArgs("ADDRESS")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			o := JoinOptions{Role: role, NoNode: noNode}
			if err := checkRole(cmd, role, noNode); err != nil {
				return err
			}
			if o.Reach, err = r.reach(cmd); err != nil {
				return err
			}
			if o.Process, err = p.process(c.Env, cmd); err != nil {
				return err
			}
			if o.Machine, err = m.machine(cmd); err != nil {
				return err
			}
			o.Reach.Name = o.Machine.Name
			o.Machine.inZone(o.Reach.Zone)
			if !discover {
				o.Address = args[0]
				if err := command.CheckAddress(cmd, "ADDRESS", o.Address); err != nil {
					return err
				}
			}
			if o.Token, err = given.read(cmd, c.Stdin); err != nil {
				return err
			}
			// The child of --detach reads the token from standard input, where no other process sees it.
			return c.runRole(cmd, p.detach, &o.Process, &handover{flag: "token-file", hides: "token", secret: o.Token},
				func(ctx context.Context) error { return c.roles.Join(ctx, o) })
		},
	}
	p.register(cmd)
	p.registerElection(cmd)
	m.register(cmd)
	r.register(cmd, " (default: port "+DefaultPort+" of the address of this machine that leads to the joined server)")
	cmd.Flags().StringVar(&role, "role", "node", "what the machine becomes: node or server")
	cmd.Flags().BoolVar(&noNode, "no-node", false, "with --role server: do not run replicas on this machine")
	cmd.Flags().BoolVar(&discover, "discover", false, "find a server of the token's cluster on this network, by mDNS")
	cmd.Flags().StringVar(&given.value, "token", "", "join `token`, visible to other users of this machine: prefer --token-file or $"+command.TokenEnv)
	cmd.Flags().StringVar(&given.file, "token-file", "", "`file` with the join token, - for standard input")
	return cmd
}

// inZone puts the node into the zone of the server on its machine, unless its labels name one.
func (m *Machine) inZone(zone *string) {
	if zone == nil || *zone == "" || m.Labels["zone"] != "" {
		return
	}
	labels := map[string]string{"zone": *zone}
	maps.Copy(labels, m.Labels)
	m.Labels = labels
}

// joinToken is where the join token comes from.
type joinToken struct{ value, file string }

func (t joinToken) read(cmd *cobra.Command, stdin io.Reader) (string, error) {
	token := t.value
	switch {
	case token != "" && t.file != "":
		return "", command.Usagef(cmd, "--token and --token-file exclude each other: leave one out")
	case token != "":
	case t.file != "":
		data, err := command.ReadTokenFile(t.file, stdin)
		if err != nil {
			return "", fmt.Errorf("read the join token: %w", err)
		}
		token = string(data)
	default:
		token = os.Getenv(command.TokenEnv)
	}
	// Processes that this one starts must not inherit it.
	if err := os.Unsetenv(command.TokenEnv); err != nil {
		return "", err
	}
	if token = strings.TrimSpace(token); token == "" {
		return "", command.Usagef(cmd, "the join token is missing: make one with cloudless token create --role node, and hand it over with --token-file or $%s", command.TokenEnv)
	}
	return token, nil
}

package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/terminal"
)

// versions is the output of version.
type versions struct {
	Client  string          `json:"client" yaml:"client"`
	Servers []serverVersion `json:"servers" yaml:"servers"`
	// Unknown is the reason why the servers' versions are unknown.
	Unknown string `json:"unknown,omitempty" yaml:"unknown,omitempty"`
}

type serverVersion struct {
	Address string `json:"address" yaml:"address"`
	Version string `json:"version" yaml:"version"`
}

// versionPatience limits how long version waits for a cluster that does not answer.
const versionPatience = 5 * time.Second

func (c *cli) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Show the versions of this program and of the servers",
		Example: "  cloudless version\n  cloudless version -o json",
		Args:    command.ExactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := versions{Client: c.Version, Servers: []serverVersion{}}
			var err error
			if v.Servers, err = c.serverVersions(cmd.Context()); err != nil {
				v.Servers, v.Unknown = []serverVersion{}, client.Message(err)
			}
			if !c.ForPeople() {
				return c.PrintValue(v)
			}
			f := terminal.NewFacts(c.Stdout)
			f.Add("Client", v.Client)
			for _, server := range v.Servers {
				f.Add("Server", server.Version+" at "+server.Address)
			}
			if v.Unknown != "" {
				f.Add("Server", "not known: "+v.Unknown)
			}
			return f.Flush()
		},
	}
}

func (c *cli) serverVersions(ctx context.Context) ([]serverVersion, error) {
	ctx, cancel := context.WithTimeout(ctx, versionPatience)
	defer cancel()
	cl, err := c.Dial(ctx)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	cluster, err := cl.Cluster().GetCluster(ctx, &cloudlessv1.GetClusterRequest{})
	if err != nil {
		return nil, err
	}
	servers := []serverVersion{}
	for _, server := range cluster.GetStatus().GetServers() {
		servers = append(servers, serverVersion{Address: server.GetAddress(), Version: server.GetVersion()})
	}
	return servers, nil
}

package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cloudless/cloudless/api"
	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/local"
	"github.com/cloudless/cloudless/internal/cli/terminal"
	"github.com/cloudless/cloudless/internal/spec"
)

// serverCommands are below the command that runs a server.
func (c *cli) serverCommands() []*cobra.Command {
	kind, _ := api.KindOf("server")
	return []*cobra.Command{c.serverListCommand(), c.nounGet(kind), c.nounDescribe(kind), c.serverRemoveCommand()}
}

func (c *cli) serverListCommand() *cobra.Command {
	var labels string
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List the servers of the cluster",
		Example: "  cloudless server ls\n  cloudless server ls -l zone=a",
		Args:    command.ExactArgs(),
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, _ []string) error {
			servers, err := client.AllPages(func(page *cloudlessv1.Page) ([]*cloudlessv1.Server, string, error) {
				answer, err := cl.Servers().ListServers(ctx, &cloudlessv1.ListServersRequest{Page: page, Labels: labels})
				return answer.GetItems(), answer.GetNext(), err
			})
			if err != nil {
				return err
			}
			if !c.ForPeople() {
				return command.PrintList(c.Env, servers)
			}
			t := terminal.NewTable(c.Stdout, "NAME", "ADDRESS", "ROLE", "HEALTH", "LAG", "ZONE", "VERSION", "AGE")
			for _, s := range servers {
				st := s.GetStatus()
				t.Row(st.GetName(), st.GetAddress(), serverRole(st), serverHealth(st), serverLag(st),
					st.GetZone(), st.GetVersion(), command.Age(s.GetMetadata().GetCreateTime(), time.Now()))
			}
			return t.Flush()
		}),
	}
	selectorFlag(cmd, &labels, "zone=a")
	return cmd
}

func serverRole(s *cloudlessv1.ServerStatus) string {
	switch {
	case s.GetLeader():
		return "leader"
	case s.GetVoter():
		return "voter"
	}
	return "non-voter"
}

func serverHealth(s *cloudlessv1.ServerStatus) string {
	if s.GetHealthy() {
		return "healthy"
	}
	return s.GetReason()
}

// serverLag is the number of log entries that a server is behind, if known.
func serverLag(s *cloudlessv1.ServerStatus) string {
	if s.GetUnknown() || !s.GetHealthy() && s.GetLastIndex() == 0 {
		return "-"
	}
	return fmt.Sprint(s.GetLag())
}

// hasLeader reports whether the server that answered knows a leader.
func hasLeader(st *cloudlessv1.ClusterStatus) bool {
	return slices.ContainsFunc(st.GetServers(), (*cloudlessv1.ServerStatus).GetLeader)
}

// mayFail says how many servers may fail, as far as the server that answered knows.
func mayFail(st *cloudlessv1.ClusterStatus) string {
	switch {
	case !hasLeader(st):
		return "none leads"
	case slices.ContainsFunc(st.GetServers(), func(s *cloudlessv1.ServerStatus) bool { return s.GetVoter() && s.GetUnknown() }):
		return "how many more may fail is not known here"
	}
	return fmt.Sprintf("%d more may fail", st.GetToleratedFailures())
}

func (c *cli) serverRemoveCommand() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:     "rm NAME...",
		Aliases: []string{"remove", "delete"},
		Short:   "Remove servers for good: they are cut off at once",
		Long: "Rm removes a server from the cluster. Before the command returns, the server has lost its vote, its certificate is\n" +
			"revoked, its connections are closed, and the gossip key is replaced. The cluster then replaces the other keys that\n" +
			"the server knows: see cloudless ca status. The server's process exits as soon as it learns of the removal, at the\n" +
			"latest when it is started again.",
		Example: "  cloudless server rm old-box",
		Args:    command.AtLeastOne("NAME"),
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, args []string) error {
			return c.ForEach(args, func(name string) error {
				removed, err := cl.Servers().DeleteServer(ctx, &cloudlessv1.DeleteServerRequest{Name: name, Force: force})
				if err != nil {
					return err
				}
				return c.PrintRemoved("server", name, removed, len(args) > 1)
			})
		}),
	}
	cmd.Flags().BoolVar(&force, "force", false, "remove even if the remaining servers have no quorum or lack images")
	return cmd
}

func (c *cli) leaderCommand() *cobra.Command {
	return command.Group("leader", "Choose which server leads", "  cloudless leader transfer\n  cloudless leader transfer box-2", c.leaderTransferCommand())
}

func (c *cli) leaderTransferCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "transfer [NAME]",
		Short:   "Hand leadership over to another server",
		Example: "  cloudless leader transfer\n  cloudless leader transfer box-2",
		Args:    command.AtMostOne,
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, args []string) error {
			request := &cloudlessv1.TransferLeaderRequest{}
			if len(args) > 0 {
				request.To = args[0]
			}
			answer, err := cl.Servers().TransferLeader(ctx, request)
			if err != nil {
				return err
			}
			if !c.ForPeople() {
				return c.PrintObject(answer)
			}
			return c.Printf("server %s leads\n", answer.GetLeader().GetMetadata().GetName())
		}),
	}
}

func (c *cli) clusterCommand() *cobra.Command {
	return command.Group("cluster", "Show the status of the cluster and configure it", "  cloudless cluster status\n  cloudless cluster config get",
		c.clusterStatusCommand(), c.clusterConfigCommand(), c.machine.Recover())
}

func (c *cli) clusterStatusCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show servers and nodes, what is wrong, and what to do about it",
		Long: "Status shows the servers with their roles and how far each is behind, how many may fail, the nodes by state, and\n" +
			"problems with what to do about them. Without a leader, it shows the last known state of the server that answered.",
		Example: "  cloudless cluster status\n  cloudless cluster status -o json",
		Args:    command.ExactArgs(),
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, _ []string) error {
			cluster, nodes, err := c.clusterStatus(ctx, cl)
			if err != nil {
				return err
			}
			if !c.ForPeople() {
				return c.PrintObject(cluster)
			}
			return c.printClusterStatus(cluster, nodes)
		}),
	}
}

const (
	// statusPatience is how long status waits for a leader before it asks for a stale answer, and how long it waits
	// until a new leader knows the health of all servers.
	statusPatience = 4 * time.Second
	statusPause    = 200 * time.Millisecond
)

// settledCluster asks for the cluster until the health of all servers is known, or ctx is done.
func settledCluster(ctx context.Context, cl *client.Client) (last *cloudlessv1.Cluster, err error) {
	for {
		cluster, err := cl.Cluster().GetCluster(ctx, &cloudlessv1.GetClusterRequest{})
		if err != nil && last != nil {
			return last, nil
		}
		unknown := func(s *cloudlessv1.ServerStatus) bool { return s.GetUnknown() }
		if last = cluster; err != nil || !slices.ContainsFunc(cluster.GetStatus().GetServers(), unknown) {
			return cluster, err
		}
		select {
		case <-ctx.Done():
			return cluster, nil
		case <-time.After(statusPause):
		}
	}
}

func (c *cli) clusterStatus(ctx context.Context, cl *client.Client) (*cloudlessv1.Cluster, []*cloudlessv1.Node, error) {
	soon, cancel := context.WithTimeout(ctx, statusPatience)
	defer cancel()
	ask := settledCluster
	if c.Stale { // a follower never knows the health of all servers
		ask = func(ctx context.Context, cl *client.Client) (*cloudlessv1.Cluster, error) {
			return cl.Cluster().GetCluster(ctx, &cloudlessv1.GetClusterRequest{})
		}
	}
	cluster, err := ask(soon, cl)
	if code := status.Code(err); ctx.Err() == nil && (code == codes.Unavailable || code == codes.DeadlineExceeded) {
		ctx = client.WithStale(ctx)
		c.MarkStale(cl)
		cluster, err = cl.Cluster().GetCluster(ctx, &cloudlessv1.GetClusterRequest{})
	}
	if err != nil {
		return nil, nil, err
	}
	nodes, err := command.ListNodes(ctx, cl, "")
	return cluster, nodes, err
}

func (c *cli) printClusterStatus(cluster *cloudlessv1.Cluster, nodes []*cloudlessv1.Node) error {
	st := cluster.GetStatus()
	voters := 0
	for _, s := range st.GetServers() {
		if s.GetVoter() {
			voters++
		}
	}
	if err := c.Printf("Cluster %s\nFingerprint: %s\nServers: %d, %d vote (%d desired); %s\n\n",
		cluster.GetMetadata().GetUid(), st.GetCaFingerprint(), len(st.GetServers()), voters, st.GetDesiredVoters(), mayFail(st)); err != nil {
		return err
	}
	far, how := "LAG", serverLag
	if !hasLeader(st) { // only a leader knows how far the others are behind
		far, how = "LOG", func(s *cloudlessv1.ServerStatus) string {
			return local.LogEnd{Term: s.GetLastTerm(), Index: s.GetLastIndex()}.String()
		}
	}
	t := terminal.NewTable(c.Stdout, "SERVER", "ADDRESS", "ROLE", "HEALTH", far, "ZONE", "VERSION")
	for _, s := range st.GetServers() {
		t.Row(s.GetName(), s.GetAddress(), serverRole(s), serverHealth(s), how(s), s.GetZone(), s.GetVersion())
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if err := c.Printf("\nNodes: %s\n", nodesByState(nodes)); err != nil {
		return err
	}
	for _, problem := range st.GetProblems() {
		if err := c.Printf("! %s\n", problem); err != nil {
			return err
		}
	}
	return nil
}

// nodesByState is a phrase such as "3 ready, 1 offline (box-4)". It names only the first nodes in each state.
func nodesByState(nodes []*cloudlessv1.Node) string {
	const named = 5
	order := []string{spec.NodeReady, spec.NodeEnrolling, spec.NodeCordoned, spec.NodeDraining, spec.NodeOffline, spec.NodeFailed}
	byState := map[string][]string{}
	for _, n := range nodes {
		state := n.GetStatus().GetState()
		if !slices.Contains(order, state) {
			order = append(order, state) // a newer server may know more states
		}
		byState[state] = append(byState[state], n.GetMetadata().GetName())
	}
	var phrases []string
	for _, state := range order {
		all := byState[state]
		switch {
		case len(all) == 0:
		case state == spec.NodeReady:
			phrases = append(phrases, fmt.Sprintf("%d ready", len(all)))
		case len(all) > named:
			phrases = append(phrases, fmt.Sprintf("%d %s (%s and %d more)", len(all), state, strings.Join(all[:named], ", "), len(all)-named))
		default:
			phrases = append(phrases, fmt.Sprintf("%d %s (%s)", len(all), state, strings.Join(all, ", ")))
		}
	}
	if len(phrases) == 0 {
		return "none"
	}
	return strings.Join(phrases, ", ")
}

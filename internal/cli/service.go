package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/terminal"
)

func (c *cli) serviceCommand() *cobra.Command {
	apply := c.applyCommand()
	apply.Short = "Create or update the services in a file"
	apply.Long = "A workload of kind service or daemon with ports needs no Service of its own. Apply one to select several workloads\n" +
		"by labels, to export it to other namespaces, or to set weights, affinity, locality, headless mode and external\n" +
		"endpoints. It keeps the addresses of the workload's own service."
	apply.Example = "  cloudless service apply -f service.yaml"
	return c.nounCommand("service", "Show services, their addresses and what their names lead to",
		"  cloudless service ls\n  cloudless service get api\n  cloudless service resolve api.shop",
		c.serviceListCommand(), apply, c.serviceResolveCommand())
}

func (c *cli) serviceListCommand() *cobra.Command {
	var s scope
	cmd := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List services with their addresses and endpoints",
		Example: "  cloudless service ls\n  cloudless service ls -l app=web -o json",
		Args:    command.ExactArgs(),
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, _ []string) error {
			all, err := client.AllPages(func(page *cloudlessv1.Page) ([]*cloudlessv1.Service, string, error) {
				answer, err := client.Service(cl, cloudlessv1.NewServiceServiceClient).ListServices(ctx, &cloudlessv1.ListServicesRequest{
					Selection: s.selection(c), Page: page,
				})
				return answer.GetItems(), answer.GetNext(), err
			})
			if err != nil {
				return err
			}
			if !c.ForPeople() {
				return command.PrintList(c.Env, all)
			}
			t := c.newScopedTable(s.everywhere, "NAME", "ADDRESS", "PORTS", "READY", "WORKLOAD", "AGE", "REASON")
			for _, s := range all {
				st := s.GetStatus()
				t.row(s.GetMetadata(), s.GetMetadata().GetName(), st.GetAddressV4(), servicePorts(s.GetSpec().GetPorts()), fmt.Sprintf("%d/%d", st.GetReady(), st.GetEndpoints()),
					st.GetWorkload(), command.Age(s.GetMetadata().GetCreateTime(), time.Now()), st.GetReason())
			}
			return t.Flush()
		}),
	}
	s.register(cmd)
	return cmd
}

func servicePorts(all []*cloudlessv1.ServicePort) string {
	var texts []string
	for _, p := range all {
		texts = append(texts, fmt.Sprintf("%d/%s", p.GetPort(), p.GetProtocol()))
	}
	return strings.Join(texts, ", ")
}

func (c *cli) serviceResolveCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "resolve NAME",
		Short: "Show what the name of a service leads to",
		Long: "Resolve looks a name up as a replica in the current namespace would: NAME, NAME.NAMESPACE or the full name.\n" +
			"A service of another namespace must be exported.",
		Example: "  cloudless service resolve api\n  cloudless service resolve api.shop -o json",
		Args:    command.ExactArgs("NAME"),
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, args []string) error {
			found, err := client.Service(cl, cloudlessv1.NewServiceServiceClient).ResolveService(ctx, &cloudlessv1.ResolveServiceRequest{Namespace: c.Namespace, Name: args[0]})
			if err != nil {
				return err
			}
			if !c.ForPeople() {
				return c.PrintObject(found)
			}
			f := terminal.NewFacts(c.Stdout)
			f.Add("Name", found.GetDnsName())
			f.Add("Addresses", strings.Join(found.GetAddresses(), ", "))
			f.Add("Ports", servicePorts(found.GetPorts()))
			f.Add("Reason", found.GetReason())
			if err := f.Flush(); err != nil || len(found.GetEndpoints()) == 0 {
				return err
			}
			return c.Section("Endpoints", c.endpointTable(false, found.GetEndpoints()).Table)
		}),
	}
}

func (c *cli) endpointTable(everywhere bool, all []*cloudlessv1.Endpoint) scopedTable {
	t := c.newScopedTable(everywhere, "NAME", "SERVICE", "ADDRESSES", "STATE", "NODE", "SOURCE", "REASON")
	for _, e := range all {
		t.row(e.GetMetadata(), e.GetMetadata().GetName(), e.GetSpec().GetService(), strings.Join(e.GetSpec().GetAddresses(), ", "), e.GetStatus().GetState(),
			e.GetSpec().GetNode(), e.GetSpec().GetSource(), e.GetStatus().GetReason())
	}
	return t
}

func (c *cli) endpointCommand() *cobra.Command {
	return command.Group("endpoint", "Show, register and deregister endpoints of services",
		"  cloudless endpoint ls api\n  cloudless endpoint register api old 192.0.2.7\n  cloudless endpoint health api old unhealthy",
		c.endpointListCommand(), c.endpointRegisterCommand(), c.endpointDeregisterCommand(), c.endpointHealthCommand())
}

func (c *cli) endpointListCommand() *cobra.Command {
	var s scope
	cmd := &cobra.Command{
		Use: "ls [SERVICE]", Aliases: []string{"list"}, Short: "List the endpoints of services and why they are not ready",
		Example: "  cloudless endpoint ls api\n  cloudless endpoint ls -A -o json",
		Args:    command.AtMostOne,
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, args []string) error {
			all, err := client.AllPages(func(page *cloudlessv1.Page) ([]*cloudlessv1.Endpoint, string, error) {
				answer, err := client.Service(cl, cloudlessv1.NewEndpointServiceClient).ListEndpoints(ctx, &cloudlessv1.ListEndpointsRequest{
					Selection: s.selection(c), Service: strings.Join(args, ""), Page: page,
				})
				return answer.GetItems(), answer.GetNext(), err
			})
			if err != nil {
				return err
			}
			if !c.ForPeople() {
				return command.PrintList(c.Env, all)
			}
			return c.endpointTable(s.everywhere, all).Flush()
		}),
		ValidArgsFunction: c.completeBy(objectNames("service"), false),
	}
	s.register(cmd)
	return cmd
}

func (c *cli) endpointRegisterCommand() *cobra.Command {
	var weight int32
	cmd := &cobra.Command{
		Use: "register SERVICE NAME ADDRESS", Short: "Register an address outside the cluster as an endpoint",
		Long: "Register adds an endpoint to a service, or changes the registered endpoint of that name. Two addresses of\n" +
			"different families are separated by a comma.",
		Example: "  cloudless endpoint register api old 192.0.2.7\n  cloudless endpoint register api old 192.0.2.7,2001:db8::7 --weight 2",
		Args:    command.ExactArgs("SERVICE", "NAME", "ADDRESS"),
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, args []string) error {
			made, err := client.Service(cl, cloudlessv1.NewEndpointServiceClient).RegisterEndpoint(ctx, &cloudlessv1.RegisterEndpointRequest{
				Namespace: c.Namespace, Service: args[0], Name: args[1], Addresses: strings.Split(args[2], ","), Weight: weight,
			})
			return c.endpointChanged(made, "registered", err)
		}),
		ValidArgsFunction: c.completeBy(objectNames("service"), false),
	}
	cmd.Flags().Int32Var(&weight, "weight", 1, "share of the new connections, compared to other workloads")
	return cmd
}

func (c *cli) endpointDeregisterCommand() *cobra.Command {
	return &cobra.Command{
		Use: "deregister SERVICE NAME", Short: "Remove a registered endpoint",
		Example: "  cloudless endpoint deregister api old",
		Args:    command.ExactArgs("SERVICE", "NAME"),
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, args []string) error {
			gone, err := client.Service(cl, cloudlessv1.NewEndpointServiceClient).DeregisterEndpoint(ctx, &cloudlessv1.DeregisterEndpointRequest{
				Namespace: c.Namespace, Service: args[0], Name: args[1],
			})
			return c.endpointChanged(gone, "deregistered", err)
		}),
		ValidArgsFunction: c.completeBy(objectNames("service"), false),
	}
}

func (c *cli) endpointHealthCommand() *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use: "health SERVICE NAME healthy|unhealthy", Short: "Say whether a registered endpoint takes connections",
		Example: "  cloudless endpoint health api old unhealthy --reason \"does not answer\"\n  cloudless endpoint health api old healthy",
		Args: func(cmd *cobra.Command, args []string) error {
			if err := command.ExactArgs("SERVICE", "NAME", "HEALTH")(cmd, args); err != nil {
				return err
			}
			if args[2] != "healthy" && args[2] != "unhealthy" {
				return command.Usagef(cmd, "%q is not a health: write healthy or unhealthy", args[2])
			}
			return nil
		},
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, args []string) error {
			now, err := client.Service(cl, cloudlessv1.NewEndpointServiceClient).SetEndpointHealth(ctx, &cloudlessv1.SetEndpointHealthRequest{
				Namespace: c.Namespace, Service: args[0], Name: args[1], Healthy: args[2] == "healthy", Reason: reason,
			})
			return c.endpointChanged(now, args[2], err)
		}),
		ValidArgsFunction: c.completeBy(objectNames("service"), false),
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why it is unhealthy, shown by endpoint ls")
	return cmd
}

// endpointChanged shows a changed endpoint.
func (c *cli) endpointChanged(e *cloudlessv1.Endpoint, what string, err error) error {
	if err != nil {
		return err
	}
	if !c.ForPeople() {
		return c.PrintObject(e)
	}
	return c.Printf("endpoint %s %s\n", e.GetMetadata().GetName(), what)
}

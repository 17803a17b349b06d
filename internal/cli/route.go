package cli

import (
	"strings"

	"github.com/spf13/cobra"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/route"
)

func (c *cli) routeCommand() *cobra.Command {
	apply := c.applyCommand()
	apply.Short = "Create or update the routes in a file"
	apply.Long = "Apply creates or updates the routes in a file, such as those that route get -o yaml prints. A user without a password hash\n" +
		"keeps the password that the route has. Like cloudless apply, it makes a plan and carries out exactly that plan."
	apply.Example = "  cloudless route apply -f routes.yaml\n  cloudless route apply -f routes/ --prune app=shop"
	return c.nounCommand("route", "Make services reachable from outside, by host names or ports",
		"  cloudless route add shop.example.org api:8080 --tls auto\n  cloudless route ls\n  cloudless route get shop-example-org\n  cloudless route rm shop-example-org",
		route.Add(c.Env), route.Get(c.Env), apply)
}

func (c *cli) certificateCommand() *cobra.Command {
	cmd := c.nounCommand("certificate", "Show the certificates of routes, and store your own",
		"  cloudless certificate ls\n  cloudless certificate get tls-shop-example-org\n  cloudless certificate add shop --cert fullchain.pem --key privkey.pem",
		route.AddCertificate(c.Env), route.GetCertificate(c.Env))
	cmd.Long = "A route with --tls auto or cluster has a certificate that the cluster makes and renews itself. Certificates that you add\n" +
		"are for routes with --tls own."
	return cmd
}

func routeRow(o client.Object) []string {
	r := o.(*cloudlessv1.Route)
	requests := ""
	if t := r.GetStatus().GetTraffic(); t != nil {
		requests = route.Rate(t.GetRequests())
	}
	return []string{r.GetStatus().GetUrl(), route.Backends(r), route.Answering(r), requests, r.GetStatus().GetReason()}
}

func certificateRow(o client.Object) []string {
	c := o.(*cloudlessv1.Certificate)
	return []string{strings.Join(c.GetSpec().GetHosts(), ", "), c.GetSpec().GetSource(), c.GetStatus().GetState(), route.Expiry(c), c.GetStatus().GetProblem()}
}

package route

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/net/idna"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/wait"
	"github.com/cloudless/cloudless/internal/spec"
)

// flags are those of route add.
type flags struct {
	wait.Flags
	name, path, tls, certificate, nodes, proxy            string
	response, connect, idle, maxHeaders, maxBody, backend string
	pinHeader, pinCookie                                  string
	bucket, index, notFound                               string
	tcp, udp, retries                                     int32
	redirect, plain, compress, accessLog                  bool
	users, allow, pages, labels                           []string
	passwords, update, detach, s3                         bool
	changed                                               func(flag string) bool
}

// Add is the command cloudless route add.
func Add(e *command.Env) *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:   "add HOST[/PATH] SERVICE[:PORT][=WEIGHT]...",
		Short: "Make a service or bucket reachable from outside, by a host name or a port",
		Long: "Add creates a route: every node of the ingress answers for the host, or at the TCP or UDP port, and passes requests to\n" +
			"the services. It says which DNS records the host needs, waits until a node answers and, with --tls auto, until the\n" +
			"certificate is there. If the wait ends early, the route stays. Repeating the command does no harm; to change a route,\n" +
			"add --update.\n\n" +
			"With --bucket the host is a web site, and everybody may read the objects of the bucket. With --s3 clients reach the S3\n" +
			"API at the host, with access keys of the namespace.\n\n" +
			"With --tls auto the cluster gets a certificate from its ACME authority, which is Let's Encrypt unless the configuration\n" +
			"names another one (acme.directory). For that, the host's DNS records must lead to the nodes.",
		Example: "  cloudless route add shop.example.org api:8080 --tls auto\n" +
			"  cloudless route add shop.example.org/v2 api:8080=9 api-next:8080=1 --tls auto\n" +
			"  cloudless route add admin.example.org admin:80 --tls auto --user ann --allow 192.0.2.0/24\n" +
			"  cloudless route add www.example.org --bucket site --not-found 404.html --tls auto\n" +
			"  cloudless route add s3.example.org --s3 --tls auto\n" +
			"  cloudless route add --tcp 5432 db:5432 --nodes zone=eu\n" +
			"  cloudless route add --udp 53 dns:53",
		Args: func(cmd *cobra.Command, args []string) error {
			least, words := 2, []string{"HOST", "SERVICE:PORT"}
			if cmd.Flags().Changed("tcp") || cmd.Flags().Changed("udp") {
				least, words = 1, words[1:]
			} else if cmd.Flags().Changed("bucket") || f.s3 {
				least = 1
			}
			if len(args) < least {
				return command.Usagef(cmd, "%s is missing: %s", words[len(args)], cmd.UseLine())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			f.changed = cmd.Flags().Changed
			r, err := f.route(e.Namespace, args)
			if err != nil {
				return command.Usagef(cmd, "%w", err)
			}
			if err := f.hash(e, cmd, r); err != nil {
				return err
			}
			if err := spec.Validate(r); err != nil {
				return err
			}
			return e.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, _ []string) error {
				return f.add(ctx, e, cl, r)
			})(cmd, args)
		},
	}
	f.register(cmd)
	return cmd
}

func (f *flags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.name, "name", "", "`name` of the route (default: made of the host and path, or the port)")
	flags.StringVar(&f.path, "path", "", "only requests for this `path` and below it, such as /v2")
	flags.Int32Var(&f.tcp, "tcp", 0, "TCP `port` that nodes open, instead of a host")
	flags.Int32Var(&f.udp, "udp", 0, "UDP `port` that nodes open, instead of a host")
	flags.StringVar(&f.bucket, "bucket", "", "serve this `bucket` as a web site, instead of a service")
	flags.StringVar(&f.index, "index", "", "`name` of the object that is shown of a folder (default: index.html)")
	flags.StringVar(&f.notFound, "not-found", "", "`key` of the object that is shown with status 404")
	flags.BoolVar(&f.s3, "s3", false, "serve the S3 API, instead of a service")
	flags.StringVar(&f.tls, "tls", "", "where the certificate is from: auto (ACME), cluster, own or off (default)")
	flags.StringVar(&f.certificate, "certificate", "", "`name` of a certificate of yours; implies --tls own")
	flags.BoolVar(&f.redirect, "redirect", false, "redirect plain HTTP to HTTPS (default with TLS)")
	flags.BoolVar(&f.plain, "plain", false, "answer plain HTTP too, instead of redirecting it")
	flags.StringVar(&f.response, "response-timeout", "", "`time` until an answer must begin (default: 1m; 0s for no limit)")
	flags.StringVar(&f.connect, "connect-timeout", "", "`time` that a connection to a replica may take (default: 5s)")
	flags.StringVar(&f.idle, "idle-timeout", "", "`time` that a stream may be silent (default: 1h; 0s for no limit)")
	flags.Int32Var(&f.retries, "retries", 2, "how many other replicas are tried if a connection fails")
	flags.StringVar(&f.maxHeaders, "max-headers", "", "`size` of a request's headers at most (default: 64Ki)")
	flags.StringVar(&f.maxBody, "max-body", "", "`size` of a request's body at most, such as 10Mi (default: no limit)")
	flags.BoolVar(&f.compress, "compress", false, "compress answers for clients that accept it")
	flags.BoolVar(&f.accessLog, "access-log", false, "write each request into the access log of the node")
	flags.StringArrayVar(&f.users, "user", nil, "let in only users with a password: the `name` of one; may be repeated")
	flags.BoolVar(&f.passwords, "password-stdin", false, "read the passwords from standard input, a line for each user")
	flags.StringSliceVar(&f.allow, "allow", nil, "let in only these `addresses` or ranges, such as 192.0.2.0/24")
	flags.StringVar(&f.pinHeader, "pin-header", "", "`NAME[=VALUE]` of the header that leads testers to a canary")
	flags.StringVar(&f.pinCookie, "pin-cookie", "", "`NAME[=VALUE]` of the cookie that leads testers to a canary")
	flags.StringArrayVar(&f.pages, "error-page", nil, "`STATUS=FILE` to show instead of an error, such as 503=down.html; 0 for all others")
	flags.StringVar(&f.backend, "backend-protocol", "", "how replicas speak: http1 or h2c (default: h2c for gRPC, else http1)")
	flags.StringVar(&f.proxy, "proxy-protocol", "", "tell TCP backends the client's address: v1 or v2")
	flags.StringVar(&f.nodes, "nodes", "", "label `selector` of the nodes that answer, such as zone=eu (default: all)")
	flags.StringArrayVarP(&f.labels, "label", "l", nil, "label `KEY=VALUE` of the route; may be repeated")
	flags.BoolVar(&f.update, "update", false, "change the route if it exists already")
	flags.BoolVarP(&f.detach, "detach", "d", false, "do not wait, the same as --wait=false")
	f.Register(cmd, "a node answers and the certificate is there")
	for flag, values := range map[string][]string{
		"tls": {spec.TLSAuto, spec.TLSCluster, spec.TLSOwn, spec.TLSOff}, "backend-protocol": {"http1", "h2c"}, "proxy-protocol": {"v1", "v2"},
	} {
		_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	}
}

// route makes the route of the arguments and flags.
func (f *flags) route(namespace string, args []string) (*v1.Route, error) {
	var err error
	s := &v1.RouteSpec{Path: f.path, Tcp: f.tcp, Udp: f.udp, Allow: f.allow, ProxyProtocol: f.proxy, Nodes: f.nodes}
	if !f.changed("tcp") && !f.changed("udp") {
		if s.Host, s.Path, err = hostAndPath(args[0], f.path); err != nil {
			return nil, err
		}
		args = args[1:]
	}
	if s.Backends, err = f.backends(args); err != nil {
		return nil, err
	}
	switch {
	case f.redirect && f.plain:
		return nil, errors.New("--redirect and --plain exclude each other: plain requests are either redirected or answered")
	case f.pinHeader != "" && f.pinCookie != "":
		return nil, errors.New("--pin-header and --pin-cookie exclude each other: give one of them")
	case f.certificate != "" && f.tls == "":
		f.tls = spec.TLSOwn
	}
	if f.tls != "" || f.certificate != "" {
		s.Tls = &v1.RouteTls{Mode: f.tls, Certificate: f.certificate}
	}
	h, err := f.http()
	if err != nil {
		return nil, err
	}
	if s.Http = h; proto.Size(h) == 0 {
		s.Http = nil
	}
	labels, err := command.ParsePairs("label", f.labels, nil)
	if err != nil {
		return nil, err
	}
	return &v1.Route{
		ApiVersion: spec.APIVersion, Kind: spec.KindRoute,
		Metadata: &v1.Metadata{Name: cmp.Or(f.name, spec.RouteName(s)), Namespace: namespace, Labels: labels}, Spec: s,
	}, nil
}

// backends are what the route leads to: services, a bucket or S3.
func (f *flags) backends(services []string) (all []*v1.RouteBackend, err error) {
	bucket := f.changed("bucket")
	switch {
	case bucket && f.s3:
		return nil, errors.New("--bucket and --s3 exclude each other: make a route for each")
	case (bucket || f.s3) && len(services) > 0:
		return nil, fmt.Errorf("%.64q is a service, and --bucket and --s3 are given instead of services: make a route for each", services[0])
	case !bucket && (f.index != "" || f.notFound != ""):
		return nil, errors.New("--index and --not-found are for a web site: say which with --bucket")
	case f.s3:
		return []*v1.RouteBackend{{S3: true}}, nil
	case bucket:
		return []*v1.RouteBackend{{Bucket: &v1.RouteBucket{Name: f.bucket, Index: f.index, NotFound: f.notFound}}}, nil
	}
	for _, text := range services {
		b, err := backend(text)
		if err != nil {
			return nil, err
		}
		all = append(all, b)
	}
	return all, nil
}

func (f *flags) http() (*v1.RouteHttp, error) {
	h := &v1.RouteHttp{
		Timeout: f.response, ConnectTimeout: f.connect, IdleTimeout: f.idle, MaxHeaders: f.maxHeaders, MaxBody: f.maxBody,
		Compress: f.compress, AccessLog: f.accessLog, BackendProtocol: f.backend,
	}
	switch {
	case f.redirect:
		h.Plain = spec.PlainRedirect
	case f.plain:
		h.Plain = spec.PlainServe
	}
	if f.changed("retries") {
		h.Retries = &f.retries
	}
	for _, name := range f.users {
		h.Users = append(h.Users, &v1.RouteUser{Name: name})
	}
	for _, text := range f.pages {
		page, err := errorPage(text)
		if err != nil {
			return nil, err
		}
		h.ErrorPages = append(h.ErrorPages, page)
	}
	if text := cmp.Or(f.pinHeader, f.pinCookie); text != "" {
		name, value, _ := strings.Cut(text, "=")
		h.Pin = &v1.RoutePin{Header: name, Value: value}
		if f.pinCookie != "" {
			h.Pin = &v1.RoutePin{Cookie: name, Value: value}
		}
	}
	return h, nil
}

// hostAndPath reads HOST or HOST/PATH. A host is written in lower case, and one with other letters as the DNS writes it.
func hostAndPath(text, path string) (host, below string, err error) {
	for _, scheme := range []string{"http://", "https://"} {
		if rest, ok := strings.CutPrefix(text, scheme); ok {
			return "", "", fmt.Errorf("%.64q is an address: write the host alone, such as %.64s", text, strings.TrimSuffix(rest, "/"))
		}
	}
	host, below, inside := strings.Cut(text, "/")
	switch {
	case !inside:
		below = path
	case path != "" && below != "":
		return "", "", fmt.Errorf("%.64q has a path, and --path gives another; give one of them", text)
	case below != "":
		below = "/" + below
	default:
		below = path
	}
	if name, _, port := strings.Cut(host, ":"); port {
		return "", "", fmt.Errorf("%.64q has a port: nodes answer for hosts at the ports of the ingress; write %.64s, and after it SERVICE:PORT", host, name)
	}
	host = strings.TrimSuffix(host, ".")
	rest, wild := strings.CutPrefix(host, "*.")
	ascii, err := idna.Lookup.ToASCII(rest)
	if err != nil {
		ascii = strings.ToLower(rest) // validation says what is wrong
	}
	if wild {
		ascii = "*." + ascii
	}
	return ascii, below, nil
}

// backend reads SERVICE[:PORT][=WEIGHT].
func backend(text string) (*v1.RouteBackend, error) {
	b := &v1.RouteBackend{}
	to, weight, weighted := strings.Cut(text, "=")
	name, port, ported := strings.Cut(to, ":")
	if b.Service = name; name == "" {
		return nil, fmt.Errorf("%.64q is not of the form SERVICE:PORT or SERVICE:PORT=WEIGHT, such as api:8080=9", text)
	}
	if ported {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return nil, fmt.Errorf("%.64q in %.64q is not a port: write a number from 1 to 65535, such as api:8080", port, text)
		}
		b.Port = int32(n)
	}
	if weighted {
		n, err := strconv.ParseUint(weight, 10, 16)
		if err != nil || n > 1000 {
			return nil, fmt.Errorf("%.64q in %.64q is not a weight: write a number from 0 to 1000, such as api:8080=9", weight, text)
		}
		b.Weight = proto.Int32(int32(n))
	}
	return b, nil
}

// pageTypes are the content types of error pages by the ends of their files' names.
var pageTypes = map[string]string{".json": "application/json", ".txt": "text/plain; charset=utf-8"}

// errorPage reads STATUS=FILE.
func errorPage(text string) (*v1.RouteErrorPage, error) {
	number, file, ok := strings.Cut(text, "=")
	n, err := strconv.ParseUint(number, 10, 16)
	if !ok || err != nil || file == "" {
		return nil, fmt.Errorf("--error-page %.64q is not of the form STATUS=FILE, such as 503=down.html", text)
	}
	body, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("--error-page: %w", err)
	}
	return &v1.RouteErrorPage{Status: int32(n), ContentType: pageTypes[filepath.Ext(file)], Body: string(body)}, nil
}

func (f *flags) add(ctx context.Context, e *command.Env, cl *client.Client, wanted *v1.Route) error {
	now, result, err := f.write(ctx, e, cl, wanted)
	if err != nil {
		return err
	}
	if e.ForPeople() {
		if err := e.Printf("route %s %s\n", now.GetMetadata().GetName(), result); err != nil {
			return err
		}
	}
	for _, line := range records(now) {
		e.Note("%s", line)
	}
	if f.On && !f.detach {
		if now, err = f.ForRoute(ctx, e, cl, now); err != nil {
			return err
		}
	}
	if !e.ForPeople() {
		return e.PrintObject(now)
	}
	if reason := now.GetStatus().GetReason(); reason != "" {
		e.Note("warning: route %s: %s", now.GetMetadata().GetName(), reason)
	}
	return e.Printf("%s\n", now.GetStatus().GetUrl())
}

// write creates the route, or changes it with --update. An equal one stays as it is.
func (f *flags) write(ctx context.Context, e *command.Env, cl *client.Client, wanted *v1.Route) (now *v1.Route, result string, err error) {
	calls := client.Service(cl, v1.NewRouteServiceClient)
	if f.update {
		answer, err := calls.ApplyRoute(ctx, &v1.ApplyRouteRequest{Route: wanted})
		return answer.GetRoute(), answer.GetResult(), err
	}
	now, refused := calls.CreateRoute(ctx, &v1.CreateRouteRequest{Route: wanted})
	if status.Code(refused) != codes.AlreadyExists {
		return now, "created", refused
	}
	m := wanted.GetMetadata()
	if now, err = calls.GetRoute(ctx, &v1.GetRouteRequest{Namespace: m.GetNamespace(), Name: m.GetName()}); err != nil {
		return nil, "", refused
	}
	normal := proto.CloneOf(spec.WithoutPasswords(wanted))
	spec.NormalizeRoute(normal)
	if changes := spec.DiffObject(now, normal); len(changes) > 0 {
		first := changes[0]
		return nil, "", fmt.Errorf("%w, and differs in %s (%s now, %s asked for): give another --name, or change it with --update",
			refused, first.Field, orNothing(first.Old), orNothing(first.New))
	}
	if len(f.users) > 0 {
		e.Note("The passwords are not compared and stay as they are: to set them again, add --update.")
	}
	return now, "unchanged", nil
}

func orNothing(text string) string { return cmp.Or(text, "nothing") }

// records are the lines that say which DNS records a host needs: one for each address of the nodes. Clients that have several
// try the next one if a node does not answer.
func records(r *v1.Route) (lines []string) {
	host := r.GetSpec().GetHost()
	if _, err := netip.ParseAddr(host); host == "" || err == nil || !strings.Contains(host, ".") {
		return nil
	}
	for _, n := range r.GetStatus().GetNodes() {
		for _, text := range n.GetAddresses() {
			a, err := netip.ParseAddr(text)
			if err != nil {
				continue
			}
			kind := "A   "
			if a.Is6() {
				kind = "AAAA"
			}
			lines = append(lines, fmt.Sprintf("  %s %s %s  (node %s)", host, kind, text, n.GetNode()))
		}
	}
	if len(lines) == 0 {
		return nil
	}
	return append([]string{"Clients find the nodes by these DNS records:"}, lines...)
}

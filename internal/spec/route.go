package spec

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"mime"
	"net/netip"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/bcrypt"
	"golang.org/x/net/http/httpguts"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// KindRoute is the kind of a v1.Route.
const KindRoute = "Route"

// Where the certificate of a route comes from.
const (
	TLSAuto    = "auto"
	TLSCluster = "cluster"
	TLSOwn     = "own"
	TLSOff     = "off"
)

// What happens to plain requests of a route with TLS.
const (
	PlainRedirect = "redirect"
	PlainServe    = "serve"
)

// The defaults of routes.
const (
	defaultRouteTimeout   = "1m"
	defaultConnectTimeout = "5s"
	defaultIdleTimeout    = "1h"
	defaultRouteRetries   = 2
	defaultMaxHeaders     = "64Ki"
	defaultPageType       = "text/html; charset=utf-8"
	defaultIndex          = "index.html"
)

// The bounds of what a route may say.
const (
	maxRouteTimeout                      = 24 * time.Hour
	minConnectTimeout, maxConnectTimeout = 10 * time.Millisecond, 5 * time.Minute
	maxIdleTimeout                       = 7 * 24 * time.Hour
	minHeaders, maxHeaders               = 1 << 10, 1 << 20
	// maxHashCost bounds what it costs a node to check one password.
	maxHashCost = 14
	// maxErrorPages is the size of all pages of a route together: every node has them in memory.
	maxErrorPages = 256 << 10
)

func init() { checkObjects(checkRoute) }

// RouteTLS is the TLS mode of a route: "off" if it has none.
func RouteTLS(s *v1.RouteSpec) string { return cmp.Or(s.GetTls().GetMode(), TLSOff) }

// RouteTitle names what a route answers for, such as "shop.example.org/v2" or "TCP port 5432".
func RouteTitle(s *v1.RouteSpec) string {
	switch {
	case s.GetTcp() != 0:
		return fmt.Sprintf("TCP port %d", s.GetTcp())
	case s.GetUdp() != 0:
		return fmt.Sprintf("UDP port %d", s.GetUdp())
	}
	return s.GetHost() + strings.TrimSuffix(RoutePath(s), "/")
}

// RoutePath is the path of a route with a host: "/" if it has none.
func RoutePath(s *v1.RouteSpec) string { return normalPath(s.GetPath()) }

// RouteName is the name that a route gets if its author gives none, such as shop-example-org-v2 or tcp-5432. A name that
// would be too long, or that a similar path would have too, ends with a hash.
func RouteName(s *v1.RouteSpec) string {
	switch {
	case s.GetTcp() != 0:
		return fmt.Sprintf("tcp-%d", s.GetTcp())
	case s.GetUdp() != 0:
		return fmt.Sprintf("udp-%d", s.GetUdp())
	}
	below := RoutePath(s)
	host := s.GetHost()
	if rest, wild := strings.CutPrefix(host, "*."); wild {
		host = "any." + rest
	}
	return hashedName(host+strings.TrimSuffix(below, "/"), host+below)
}

// hashedName turns a text into a name. If that loses more than dots and slashes, or the name would be too long, it ends with a
// hash of what it stands for.
func hashedName(text, whole string) string {
	lost := false
	name := strings.Trim(strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-':
			return r
		case r == '.', r == '/':
			return '-'
		case r >= 'A' && r <= 'Z':
			lost = true
			return r - 'A' + 'a'
		}
		lost = true
		return '-'
	}, text), "-")
	if !lost && len(name) <= maxName && name != "" {
		return name
	}
	const digits = 8
	sum := sha256.Sum256([]byte(whole))
	name = strings.TrimRight(name[:min(len(name), maxName-digits-1)], "-")
	return strings.TrimLeft(name+"-"+hex.EncodeToString(sum[:])[:digits], "-")
}

// HostCovers reports whether a host of a route or a certificate, which may be a wildcard, stands for another one too.
func HostCovers(host, other string) bool {
	if host == other {
		return true
	}
	domain, wild := strings.CutPrefix(host, "*.")
	label, parent, ok := strings.Cut(other, ".")
	return wild && ok && label != "*" && parent == domain
}

// HostsOverlap reports whether some name belongs to both hosts.
func HostsOverlap(a, b string) bool { return HostCovers(a, b) || HostCovers(b, a) }

// checkRoute checks what the API's rules cannot express.
func checkRoute(r *v1.Route, found *violations) {
	if r.GetMetadata().GetName() == "" && !found.has("metadata.name") {
		found.add("metadata.name", "is missing")
	}
	s := r.GetSpec()
	checkRouteKind(s, found)
	checkBackends(s, found)
	checkRouteTLS(s, found)
	checkRouteHTTP(s, found)
	for i, text := range s.GetAllow() {
		if _, ok := addressRange(text); !ok && !found.has(indexPath("spec.allow", i)) {
			found.add(indexPath("spec.allow", i), "%q is not an address or a range of addresses, such as 192.0.2.7 or 192.0.2.0/24", text)
		}
	}
	if s.GetProxyProtocol() != "" && s.GetTcp() == 0 {
		found.add("spec.proxyProtocol", "is only for TCP routes: backends of a host learn the client's address from X-Forwarded-For; leave it out")
	}
	checkSelector("spec.nodes", s.GetNodes(), found)
}

// checkSelector refuses a text that is no label selector.
func checkSelector(path, text string, found *violations) {
	if _, err := ParseSelector(text); err != nil && !found.has(path) {
		found.add(path, "%s", err.(*Error).Violations[0].Message)
	}
}

// addressRange reads an address or a range of addresses in CIDR notation.
func addressRange(text string) (netip.Prefix, bool) {
	if p, err := netip.ParsePrefix(text); err == nil {
		return p.Masked(), true
	}
	a, err := netip.ParseAddr(text)
	if err != nil || a.Zone() != "" {
		return netip.Prefix{}, false
	}
	a = a.Unmap()
	return netip.PrefixFrom(a, a.BitLen()), true
}

func checkRouteKind(s *v1.RouteSpec, found *violations) {
	var has []string
	for _, one := range []struct {
		field string
		set   bool
	}{{"host", s.GetHost() != ""}, {"tcp", s.GetTcp() != 0}, {"udp", s.GetUdp() != 0}} {
		if one.set {
			has = append(has, one.field)
		}
	}
	switch {
	case len(has) == 0 && !found.has("spec.host") && !found.has("spec.tcp") && !found.has("spec.udp"):
		found.add("spec", "says nothing to answer for: give a host such as shop.example.org, or a tcp or udp port")
	case len(has) > 1:
		found.add("spec."+has[1], "is given beside %s, and a route has exactly one of host, tcp and udp: make a route for each", has[0])
	}
	if s.GetTcp() == sshPort {
		found.add("spec.tcp", "%d is the port of SSH, by which people reach the node; choose another", sshPort)
	}
	if s.GetTcp() == dnsPort {
		found.add("spec.tcp", "%d is the port of the resolver that every node has; choose another", dnsPort)
	}
	if s.GetTcp() == chunkPort {
		found.add("spec.tcp", "%d is the port by which the nodes get chunks of the object store from each other; choose another", chunkPort)
	}
	if s.GetUdp() == meshPort {
		found.add("spec.udp", "%d is the port of the mesh, by which the nodes reach each other; choose another", meshPort)
	}
	switch {
	case s.GetPath() == "" || found.has("spec.path"):
	case s.GetHost() == "" && len(has) > 0:
		found.add("spec.path", "is only for routes with a host: TCP and UDP know no paths; leave it out")
	case path.Clean(s.GetPath()) != normalPath(s.GetPath()):
		found.add("spec.path", "must be in its shortest form, without //, . and ..: write %s", path.Clean(s.GetPath()))
	}
}

func checkBackends(s *v1.RouteSpec, found *violations) {
	if len(s.GetBackends()) == 0 && !found.has("spec.backends") {
		found.add("spec.backends", "is missing: say which service or bucket gets the requests, such as {service: api, port: 8080} or {bucket: {name: site}}")
		return
	}
	seen, weight := map[string]int{}, int32(0)
	for i, b := range s.GetBackends() {
		at := indexPath("spec.backends", i)
		checkBackend(at, b, s, found)
		key := BackendTitle(b)
		if first, twice := seen[key]; twice && key != "" {
			found.add(at, "is the same as %s: give it once, with the sum of the weights", indexPath("spec.backends", first))
		} else {
			seen[key] = i
		}
		weight += weightOf(b)
	}
	if weight == 0 && !found.has("spec.backends") {
		found.add("spec.backends", "all have weight 0, so nothing would answer: give one of them a weight, or remove the route")
	}
}

// checkBackend checks what one backend leads to.
func checkBackend(at string, b *v1.RouteBackend, s *v1.RouteSpec, found *violations) {
	kinds := 0
	for _, given := range []bool{b.GetService() != "", b.GetBucket() != nil, b.GetS3()} {
		if given {
			kinds++
		}
	}
	stored := b.GetBucket() != nil || b.GetS3()
	switch {
	case kinds == 0 && !found.has(at+".service"):
		found.add(at, "leads to nothing: give a service, a bucket, or s3: true")
	case kinds > 1:
		found.add(at, "must be one of service, bucket and s3; make a backend for each")
	case stored && s.GetHost() == "":
		found.add(at, "is only for routes with a host: buckets are served by HTTP")
	case stored && b.GetPort() != 0:
		found.add(at+".port", "is only for services; leave it out")
	case stored && s.GetHttp().GetBackendProtocol() == "h2c":
		found.add("spec.http.backendProtocol", "is only for services: buckets are served by HTTP/1.1; leave it out")
	}
	if strings.Contains(b.GetBucket().GetIndex(), "/") {
		found.add(at+".bucket.index", "must have no slash: it is the name of an object within each folder, such as index.html")
	}
	if strings.HasPrefix(b.GetBucket().GetNotFound(), "/") {
		found.add(at+".bucket.notFound", "is the key of an object, and begins with no slash: write %s", strings.TrimLeft(b.GetBucket().GetNotFound(), "/"))
	}
}

// BackendTitle names what a backend leads to, such as "api:8080", "bucket site" or "S3".
func BackendTitle(b *v1.RouteBackend) string {
	switch {
	case b.GetS3():
		return "S3"
	case b.GetBucket() != nil:
		return "bucket " + b.GetBucket().GetName()
	case b.GetPort() != 0:
		return fmt.Sprintf("%s:%d", b.GetService(), b.GetPort())
	}
	return b.GetService()
}

func weightOf(b *v1.RouteBackend) int32 {
	if b.Weight == nil {
		return 1
	}
	return max(b.GetWeight(), 0)
}

func checkRouteTLS(s *v1.RouteSpec, found *violations) {
	const mode, certificate = "spec.tls.mode", "spec.tls.certificate"
	switch tls := RouteTLS(s); {
	case found.has(mode) || found.has(certificate):
	case tls != TLSOff && s.GetUdp() != 0:
		found.add(mode, "must be off for a UDP route: TLS is for hosts and TCP ports")
	case (tls == TLSAuto || tls == TLSCluster) && s.GetTcp() != 0:
		found.add(mode, "%s is for routes with a host, because a certificate is made for a host; use own with a certificate of yours, or off", tls)
	case tls == TLSAuto && !hasDomain(s.GetHost()) && s.GetHost() != "" && !found.has("spec.host"):
		found.add(mode, "auto needs a name such as shop.example.org, and authorities make no certificates for %s; use cluster, own or off", s.GetHost())
	case tls == TLSOwn && s.GetTls().GetCertificate() == "":
		found.add(certificate, "is missing: mode own needs the name of a certificate; add one with: %s",
			"cloudless certificate add NAME --cert FILE --key FILE")
	case tls != TLSOwn && s.GetTls().GetCertificate() != "":
		found.add(certificate, "is only for mode own: set mode: own, or leave it out")
	}
}

// hasDomain reports whether a host is a name that an authority may know: it has a dot and is no address. The authority of a
// company may know names that the public DNS does not.
func hasDomain(host string) bool {
	_, err := netip.ParseAddr(host)
	return err != nil && strings.Contains(host, ".")
}

func checkRouteHTTP(s *v1.RouteSpec, found *violations) {
	const at = "spec.http"
	h := s.GetHttp()
	if h == nil {
		return
	}
	if s.GetHost() == "" && (s.GetTcp() != 0 || s.GetUdp() != 0) {
		found.add(at, "is only for routes with a host; leave it out")
		return
	}
	if h.GetPlain() == PlainRedirect && RouteTLS(s) == TLSOff {
		found.add(at+".plain", "redirect is only for routes with TLS: set tls.mode, or leave it out")
	}
	upTo(at+".timeout", h.GetTimeout(), maxRouteTimeout, found)
	within(at+".connectTimeout", h.GetConnectTimeout(), minConnectTimeout, maxConnectTimeout, found)
	upTo(at+".idleTimeout", h.GetIdleTimeout(), maxIdleTimeout, found)
	if n, ok := readAmount(at+".maxHeaders", h.GetMaxHeaders(), ParseBytes, found); ok && (n < minHeaders || n > maxHeaders) {
		found.add(at+".maxHeaders", "must be between %s and %s, or left out for %s", FormatBytes(minHeaders), FormatBytes(maxHeaders), defaultMaxHeaders)
	}
	if n, ok := readAmount(at+".maxBody", h.GetMaxBody(), ParseBytes, found); ok && n == 0 {
		found.add(at+".maxBody", "must be more than 0; leave it out for no limit")
	}
	checkUsers(h.GetUsers(), found)
	checkErrorPages(h.GetErrorPages(), found)
	checkPin(h.GetPin(), found)
}

// upTo checks an optional duration for which 0 means no limit.
func upTo(path, text string, most time.Duration, found *violations) {
	if d, ok := readAmount(path, text, ParseDuration, found); ok && d > most {
		found.add(path, "must be at most %s, or 0s for no limit", FormatDuration(most))
	}
}

func checkUsers(users []*v1.RouteUser, found *violations) {
	names := map[string]int{}
	for i, u := range users {
		at := indexPath("spec.http.users", i)
		if first, twice := names[u.GetName()]; twice && u.GetName() != "" {
			found.add(at+".name", "is the name of %s too; names of users must differ", indexPath("spec.http.users", first))
		}
		names[u.GetName()] = i
		if strings.ContainsFunc(u.GetName(), func(r rune) bool { return r == ':' || r < ' ' || r == 0x7f }) {
			found.add(at+".name", "must have no colon and no control characters: basic authentication sends name:password")
		}
		if u.GetPasswordHash() == "" || found.has(at+".passwordHash") {
			continue // an update keeps the stored one
		}
		// The message must not repeat the text: it may be a password.
		switch cost, err := bcrypt.Cost([]byte(u.GetPasswordHash())); {
		case err != nil || len(u.GetPasswordHash()) != len("$2a$10$")+53:
			found.add(at+".passwordHash", "is not a bcrypt hash such as $2b$10$...: make one with htpasswd -nB NAME, or let cloudless route add --user NAME do it")
		case cost > maxHashCost:
			found.add(at+".passwordHash", "has the cost %d, and every request would take long: the cost may be at most %d", cost, maxHashCost)
		}
	}
}

func checkErrorPages(pages []*v1.RouteErrorPage, found *violations) {
	seen, size := map[int32]int{}, 0
	for i, p := range pages {
		at := indexPath("spec.http.errorPages", i)
		if first, twice := seen[p.GetStatus()]; twice {
			found.add(at+".status", "%d has the page %s already; give one page for each status", p.GetStatus(), indexPath("spec.http.errorPages", first))
		}
		seen[p.GetStatus()] = i
		if p.GetStatus() != 0 && (p.GetStatus() < 400 || p.GetStatus() > 599) && !found.has(at+".status") {
			found.add(at+".status", "must be between 400 and 599, or 0 for all others: pages replace errors")
		}
		if t := p.GetContentType(); t != "" {
			if _, _, err := mime.ParseMediaType(t); err != nil || !httpguts.ValidHeaderFieldValue(t) {
				found.add(at+".contentType", "%q is not a content type such as %s", t, defaultPageType)
			}
		}
		size += len(p.GetBody())
	}
	if size > maxErrorPages {
		found.add("spec.http.errorPages", "have %s together, and may have %s: every node keeps them in memory", HumanBytes(int64(size)), FormatBytes(maxErrorPages))
	}
}

func checkPin(p *v1.RoutePin, found *violations) {
	const at = "spec.http.pin"
	switch {
	case p == nil:
		return
	case p.GetHeader() == "" && p.GetCookie() == "":
		found.add(at, "needs a header or a cookie by which testers are recognized, such as {header: X-Canary}")
	case p.GetHeader() != "" && p.GetCookie() != "":
		found.add(at+".cookie", "is given beside header; give one of them")
	case p.GetHeader() != "" && !httpguts.ValidHeaderFieldName(p.GetHeader()):
		found.add(at+".header", "%q is not the name of a header, such as X-Canary", p.GetHeader())
	case p.GetCookie() != "" && !httpguts.ValidHeaderFieldName(p.GetCookie()):
		found.add(at+".cookie", "%q is not the name of a cookie, such as canary", p.GetCookie())
	}
	if !httpguts.ValidHeaderFieldValue(p.GetValue()) || p.GetCookie() != "" && strings.ContainsAny(p.GetValue(), "\"\\,; ") {
		found.add(at+".value", "has a character that a header or a cookie cannot have")
	}
}

// NormalizeRoute brings a route to its canonical form in place: it fills in defaults and writes values in one way.
func NormalizeRoute(r *v1.Route) {
	if r.Spec == nil {
		r.Spec = &v1.RouteSpec{}
	}
	s := r.Spec
	for _, b := range s.Backends {
		b.Weight = proto.Int32(weightOf(b))
		if b.Bucket != nil {
			fill(&b.Bucket.Index, defaultIndex)
		}
	}
	if s.Tls == nil {
		s.Tls = &v1.RouteTls{}
	}
	fill(&s.Tls.Mode, TLSOff)
	for i, text := range s.Allow {
		if p, ok := addressRange(text); ok {
			s.Allow[i] = rangeText(p)
		}
	}
	if selector, err := ParseSelector(s.Nodes); err == nil {
		s.Nodes = selector.String()
	}
	if s.Host == "" {
		s.Http = nil
		return
	}
	s.Path = normalPath(s.Path)
	if s.Http == nil {
		s.Http = &v1.RouteHttp{}
	}
	normalHTTP(s.Http, s.Tls.Mode)
}

func normalPath(p string) string { return cmp.Or(strings.TrimRight(p, "/"), "/") }

func normalHTTP(h *v1.RouteHttp, tls string) {
	if tls == TLSOff {
		h.Plain = ""
	} else {
		fill(&h.Plain, PlainRedirect)
	}
	normalDuration(&h.Timeout, defaultRouteTimeout)
	normalDuration(&h.ConnectTimeout, defaultConnectTimeout)
	normalDuration(&h.IdleTimeout, defaultIdleTimeout)
	if h.Retries == nil {
		h.Retries = proto.Int32(defaultRouteRetries)
	}
	fill(&h.MaxHeaders, defaultMaxHeaders)
	for _, size := range []*string{&h.MaxHeaders, &h.MaxBody} {
		if n, err := ParseBytes(*size); err == nil {
			*size = FormatBytes(n)
		}
	}
	for _, page := range h.ErrorPages {
		fill(&page.ContentType, defaultPageType)
	}
}

// KeepPasswords gives the users of a route that have no hash the one that the stored route has for the same name. It returns
// the index of the first user that has none there, or -1.
func KeepPasswords(wanted, stored *v1.RouteSpec) int {
	for i, u := range wanted.GetHttp().GetUsers() {
		if u.PasswordHash != "" {
			continue
		}
		at := slices.IndexFunc(stored.GetHttp().GetUsers(), func(o *v1.RouteUser) bool { return o.GetName() == u.GetName() })
		if at < 0 {
			return i
		}
		u.PasswordHash = stored.GetHttp().GetUsers()[at].GetPasswordHash()
	}
	return -1
}

// WithoutPasswords is a route as answers show it: without the hashes of passwords. It shares everything else.
func WithoutPasswords(r *v1.Route) *v1.Route {
	if len(r.GetSpec().GetHttp().GetUsers()) == 0 {
		return r
	}
	r = proto.CloneOf(r)
	for _, u := range r.GetSpec().GetHttp().GetUsers() {
		u.PasswordHash = ""
	}
	return r
}

// The default ports of the ingress.
const (
	DefaultHTTPPort  = 80
	DefaultHTTPSPort = 443
)

// IngressPorts are the ports at which nodes answer for routes with a host.
func IngressPorts(c *v1.ClusterSpec) (http, https int32) {
	return cmp.Or(c.GetIngress().GetHttpPort(), DefaultHTTPPort), cmp.Or(c.GetIngress().GetHttpsPort(), DefaultHTTPSPort)
}

// checkIngress refuses what nodes could not do, as far as the settings alone show it.
func checkIngress(c *v1.ClusterSpec, found *violations) {
	const at = clusterPath + ".ingress"
	checkSelector(at+".nodes", c.GetIngress().GetNodes(), found)
	http, https := IngressPorts(c)
	if http == https {
		found.add(at+".httpsPort", "is %d, as httpPort is; give two ports", https)
	}
	for _, p := range []struct {
		field string
		port  int32
	}{{".httpPort", http}, {".httpsPort", https}} {
		if p.port == dnsPort {
			found.add(at+p.field, "%d is the port of the resolver that every node has; choose another", dnsPort)
		}
		if p.port == sshPort {
			found.add(at+p.field, "%d is the port of SSH, by which people reach the node; choose another", sshPort)
		}
	}
	for i, text := range c.GetIngress().GetTrustedProxies() {
		path := indexPath(at+".trustedProxies", i)
		p, ok := addressRange(text)
		switch {
		case found.has(path):
		case !ok:
			found.add(path, "%q is not an address or a range of addresses, such as 192.0.2.7 or 192.0.2.0/24", text)
		case p.Bits() == 0:
			found.add(path, "%s is every address, so any client could claim to be another; give those of your load balancers", text)
		}
	}
}

// normalIngress writes addresses and selectors in one way.
func normalIngress(i *v1.Ingress) *v1.Ingress {
	if i == nil {
		return nil
	}
	if selector, err := ParseSelector(i.Nodes); err == nil {
		i.Nodes = selector.String()
	}
	for at, text := range i.TrustedProxies {
		if p, ok := addressRange(text); ok {
			i.TrustedProxies[at] = rangeText(p)
		}
	}
	return unlessEmpty(i)
}

// rangeText writes a range, and a single address without its length.
func rangeText(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

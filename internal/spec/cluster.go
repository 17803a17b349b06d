package spec

import (
	"cmp"
	"net/netip"
	"net/url"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// Liveness says when a node counts as offline.
type Liveness struct {
	// Heartbeat is how often an agent reports.
	Heartbeat time.Duration
	// Silence is how long an open session may be silent.
	Silence time.Duration
	// Reconnect is how long a node without a session may take to come back
	// while its machine still answers.
	Reconnect time.Duration
}

// DefaultLiveness is used if the configuration sets nothing.
var DefaultLiveness = Liveness{Heartbeat: time.Second, Silence: 3 * time.Second, Reconnect: 10 * time.Second}

// LivenessOf returns the timeouts for a node: from the first class that matches, then from
// the cluster, then the defaults. Unreadable values are ignored: the configuration was
// validated when it was set.
func LivenessOf(c *v1.ClusterSpec, n *v1.Node) Liveness {
	own, all := NodeClassOf(c, n).GetLiveness(), c.GetLiveness()
	return Liveness{
		Heartbeat: cmp.Or(durationOf(own.GetHeartbeat()), durationOf(all.GetHeartbeat()), DefaultLiveness.Heartbeat),
		Silence:   cmp.Or(durationOf(own.GetSilence()), durationOf(all.GetSilence()), DefaultLiveness.Silence),
		Reconnect: cmp.Or(durationOf(own.GetReconnect()), durationOf(all.GetReconnect()), DefaultLiveness.Reconnect),
	}
}

// ShortestSilence is the shortest silence limit of any node.
func ShortestSilence(c *v1.ClusterSpec) time.Duration {
	shortest := cmp.Or(durationOf(c.GetLiveness().GetSilence()), DefaultLiveness.Silence)
	for _, class := range c.GetNodeClasses() {
		if own := durationOf(class.GetLiveness().GetSilence()); own > 0 {
			shortest = min(shortest, own)
		}
	}
	return shortest
}

// durationOf is the parsed duration, 0 if there is none.
func durationOf(text string) time.Duration {
	if text == "" {
		return 0
	}
	d, err := ParseDuration(text)
	if err != nil {
		return 0
	}
	return d
}

// The limits of the disk that a configuration without its own has.
const (
	defaultUnpacked    = 20 << 30
	defaultHighPercent = 80
	defaultWritable    = 10 << 30
)

// DiskLimitsOf is how the nodes of a cluster keep their disks from filling up.
func DiskLimitsOf(c *v1.ClusterSpec) *v1.DiskLimits {
	s := c.GetSecurity()
	limits := &v1.DiskLimits{MaxUnpackedImage: defaultUnpacked, ImageHighPercent: defaultHighPercent, MaxWritableLayer: defaultWritable}
	if n, err := ParseBytes(s.GetMaxUnpackedImage()); err == nil && n > 0 {
		limits.MaxUnpackedImage = n
	}
	if s.GetImageHighPercent() > 0 {
		limits.ImageHighPercent = s.GetImageHighPercent()
	}
	if n, err := ParseBytes(s.GetMaxWritableLayer()); err == nil && n > 0 {
		limits.MaxWritableLayer = n
	}
	return limits
}

// Oidc is how users log in by an OpenID provider.
type Oidc struct {
	Issuer, ClientID, UsernameClaim, GroupsClaim string
	Scopes                                       []string
	// Session is how long a login lasts.
	Session time.Duration
	// CA are certificates in PEM that the provider's own may be from.
	CA string
}

// Defaults of logins.
const (
	EmailClaim             = "email"
	defaultGroupsClaim     = "groups"
	defaultSession         = 12 * time.Hour
	minSession, maxSession = time.Minute, 90 * 24 * time.Hour
)

// OidcOf returns how users log in; false if the configuration names no provider.
func OidcOf(c *v1.ClusterSpec) (Oidc, bool) {
	o := c.GetOidc()
	scopes := o.GetScopes()
	if len(scopes) == 0 {
		scopes = []string{"email", "profile"}
	}
	return Oidc{
		Issuer: o.GetIssuer(), ClientID: o.GetClientId(), Scopes: scopes, CA: o.GetCa(),
		UsernameClaim: cmp.Or(o.GetUsernameClaim(), EmailClaim), GroupsClaim: cmp.Or(o.GetGroupsClaim(), defaultGroupsClaim),
		Session: cmp.Or(durationOf(o.GetSession()), defaultSession),
	}, o.GetIssuer() != "" && o.GetClientId() != ""
}

// normalOidc removes empty parts.
func normalOidc(o *v1.Oidc) *v1.Oidc {
	if o == nil {
		return nil
	}
	canonicalDuration(&o.Session)
	return unlessEmpty(o)
}

func checkOidc(path string, o *v1.Oidc, found *violations) {
	if o == nil {
		return
	}
	if o.GetIssuer() == "" && (o.GetClientId() != "" || len(o.GetScopes()) > 0 || o.GetCa() != "") {
		found.add(path+".issuer", "is missing: the other settings are those of a provider; name it, or leave them out")
	}
	if text := o.GetIssuer(); text != "" {
		if !isIssuer(text) {
			found.add(path+".issuer", "must be the address of the provider as its ID tokens name it, such as https://accounts.example.org: with https, and without a query; http is only for a provider at a loopback address")
		}
		if o.GetClientId() == "" {
			found.add(path+".clientId", "is missing: give the id that the provider has for cloudless as a public client")
		}
	}
	if text := o.GetCa(); text != "" {
		if _, problem := certificatesOf([]byte(text)); problem != "" {
			found.add(path+".ca", "%s", problem)
		}
	}
	within(path+".session", o.GetSession(), minSession, maxSession, found)
}

// isIssuer reports whether a text may be the address of an OpenID provider.
func isIssuer(text string) bool {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" {
		return false
	}
	address, err := netip.ParseAddr(u.Hostname())
	local := err == nil && address.IsLoopback() || u.Hostname() == "localhost"
	return u.Scheme == "https" || u.Scheme == "http" && local
}

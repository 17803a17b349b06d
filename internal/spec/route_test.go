package spec

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

const (
	hash10 = "$2a$10$N9qo8uLOickgx2ZMRZoMyeIjZAgcfl7p92ldGxad68LJZdL17lhWy"
	hash15 = "$2a$15$N9qo8uLOickgx2ZMRZoMyeIjZAgcfl7p92ldGxad68LJZdL17lhWy"
)

func route(text string) string {
	return "kind: Route\nmetadata: {name: r}\nspec: " + text + "\n"
}

// Every mistake names the field, the reason and the way out.
func TestWrongRoutesAreRefused(t *testing.T) {
	const to = "backends: [{service: api, port: 80}]"
	for given, want := range map[string]string{
		"{" + to + "}":                                                                          "spec: says nothing to answer for: give a host such as shop.example.org, or a tcp or udp port",
		"{host: a.org, tcp: 5432, " + to + "}":                                                  "spec.tcp: is given beside host, and a route has exactly one of host, tcp and udp",
		"{tcp: 22, " + to + "}":                                                                 "spec.tcp: 22 is the port of SSH",
		"{tcp: 7702, " + to + "}":                                                               "spec.tcp: 7702 is the port by which the nodes get chunks",
		"{udp: 7701, " + to + "}":                                                               "spec.udp: 7701 is the port of the mesh",
		"{host: Shop.Example.org, " + to + "}":                                                  "spec.host: must be a host name in lower case",
		"{host: '*', " + to + "}":                                                               "spec.host: must be a host name",
		"{host: a.*.org, " + to + "}":                                                           "spec.host: must be a host name",
		"{host: a.org, path: v2, " + to + "}":                                                   "spec.path: must begin with a slash",
		"{host: a.org, path: '/a b', " + to + "}":                                               "spec.path: must begin with a slash",
		"{host: a.org, path: /v1/../v2, " + to + "}":                                            "spec.path: must be in its shortest form, without //, . and ..: write /v2",
		"{tcp: 5432, path: /v2, " + to + "}":                                                    "spec.path: is only for routes with a host",
		"{host: a.org}":                                                                         "spec.backends: is missing: say which service or bucket gets the requests",
		"{host: a.org, backends: [{port: 80}]}":                                                 "spec.backends[0]: leads to nothing: give a service, a bucket, or s3: true",
		"{host: a.org, backends: [{service: a, weight: 0}]}":                                    "spec.backends: all have weight 0",
		"{host: a.org, backends: [{service: a}, {service: a}]}":                                 "spec.backends[1]: is the same as spec.backends[0]",
		"{host: a.org, backends: [{service: a, s3: true}]}":                                     "spec.backends[0]: must be one of service, bucket and s3",
		"{host: a.org, backends: [{bucket: {index: a.htm}}]}":                                   "spec.backends[0].bucket.name: is missing",
		"{host: a.org, backends: [{bucket: {name: site}, port: 80}]}":                           "spec.backends[0].port: is only for services",
		"{host: a.org, backends: [{bucket: {name: site}}, {bucket: {name: site}}]}":             "spec.backends[1]: is the same as spec.backends[0]",
		"{host: a.org, backends: [{bucket: {name: site, index: a/b}}]}":                         "spec.backends[0].bucket.index: must have no slash",
		"{host: a.org, backends: [{bucket: {name: site, notFound: /404.html}}]}":                "spec.backends[0].bucket.notFound: is the key of an object, and begins with no slash: write 404.html",
		"{tcp: 5432, backends: [{bucket: {name: site}}]}":                                       "spec.backends[0]: is only for routes with a host",
		"{host: a.org, http: {backendProtocol: h2c}, backends: [{s3: true}]}":                   "spec.http.backendProtocol: is only for services",
		"{host: a.org, backends: [{service: a, weight: 1001}]}":                                 "spec.backends[0].weight: must be between 0 and 1000",
		"{host: a.org, tls: {mode: on}, " + to + "}":                                            "spec.tls.mode: must be auto, cluster, own or off",
		"{host: a.org, tls: {mode: own}, " + to + "}":                                           "spec.tls.certificate: is missing: mode own needs the name of a certificate; add one with: cloudless certificate add",
		"{host: a.org, tls: {mode: auto, certificate: c}, " + to + "}":                          "spec.tls.certificate: is only for mode own",
		"{tcp: 53, " + to + "}":                                                                 "spec.tcp: 53 is the port of the resolver that every node has; choose another",
		"{tcp: 5432, tls: {mode: auto}, " + to + "}":                                            "spec.tls.mode: auto is for routes with a host",
		"{udp: 53, tls: {mode: own, certificate: c}, " + to + "}":                               "spec.tls.mode: must be off for a UDP route",
		"{host: localhost, tls: {mode: auto}, " + to + "}":                                      "spec.tls.mode: auto needs a name such as shop.example.org, and authorities make no certificates for localhost",
		"{host: 192.0.2.7, tls: {mode: auto}, " + to + "}":                                      "spec.tls.mode: auto needs a name",
		"{tcp: 5432, http: {compress: true}, " + to + "}":                                       "spec.http: is only for routes with a host",
		"{host: a.org, http: {plain: redirect}, " + to + "}":                                    "spec.http.plain: redirect is only for routes with TLS",
		"{host: a.org, http: {timeout: soon}, " + to + "}":                                      "spec.http.timeout: must be a length of time",
		"{host: a.org, http: {timeout: 25h}, " + to + "}":                                       "spec.http.timeout: must be at most 24h, or 0s for no limit",
		"{host: a.org, http: {connectTimeout: 0s}, " + to + "}":                                 "spec.http.connectTimeout: must be between 10ms and 5m",
		"{host: a.org, http: {maxHeaders: 2Mi}, " + to + "}":                                    "spec.http.maxHeaders: must be between 1Ki and 1Mi, or left out for 64Ki",
		"{host: a.org, http: {maxBody: '0'}, " + to + "}":                                       "spec.http.maxBody: must be more than 0",
		"{host: a.org, http: {maxBody: lots}, " + to + "}":                                      "spec.http.maxBody: \"lots\" must be an amount of bytes",
		"{host: a.org, http: {users: [{name: 'a:b'}]}, " + to + "}":                             "spec.http.users[0].name: must have no colon",
		"{host: a.org, http: {users: [{name: a}, {name: a}]}, " + to + "}":                      "spec.http.users[1].name: is the name of spec.http.users[0] too",
		"{host: a.org, http: {users: [{name: a, passwordHash: '" + hash15 + "'}]}, " + to + "}": "spec.http.users[0].passwordHash: has the cost 15",
		"{host: a.org, http: {errorPages: [{status: 200, body: x}]}, " + to + "}":               "spec.http.errorPages[0].status: must be between 400 and 599",
		"{host: a.org, http: {errorPages: [{body: x}, {body: y}]}, " + to + "}":                 "spec.http.errorPages[1].status: 0 has the page spec.http.errorPages[0] already",
		"{host: a.org, http: {errorPages: [{body: x, contentType: 'a/;b'}]}, " + to + "}":       "spec.http.errorPages[0].contentType",
		"{host: a.org, http: {pin: {value: x}}, " + to + "}":                                    "spec.http.pin: needs a header or a cookie",
		"{host: a.org, http: {pin: {header: X, cookie: x}}, " + to + "}":                        "spec.http.pin.cookie: is given beside header",
		"{host: a.org, http: {pin: {header: 'X Y'}}, " + to + "}":                               "spec.http.pin.header: \"X Y\" is not the name of a header",
		"{host: a.org, http: {pin: {cookie: a, value: 'b;c'}}, " + to + "}":                     "spec.http.pin.value: has a character",
		"{host: a.org, allow: [10.0.0.0/33], " + to + "}":                                       "spec.allow[0]: \"10.0.0.0/33\" is not an address or a range of addresses",
		"{host: a.org, proxyProtocol: v2, " + to + "}":                                          "spec.proxyProtocol: is only for TCP routes",
		"{host: a.org, nodes: 'a b', " + to + "}":                                               "spec.nodes: \"a b\" is not a label selector",
	} {
		if _, err := Decode("f", []byte(route(given))); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s gives %v, want %q", given, err, want)
		}
	}
	if _, err := Decode("f", []byte("kind: Route\nspec: {host: a.org, "+to+"}\n")); err == nil || !strings.Contains(err.Error(), "metadata.name: is missing") {
		t.Errorf("without a name: %v", err)
	}
}

// A password that was written in place of its hash is in no message.
func TestPasswordsAreInNoMessage(t *testing.T) {
	_, err := Decode("f", []byte(route("{host: a.org, backends: [{service: a}], http: {users: [{name: a, passwordHash: hunter2}]}}")))
	if err == nil || !strings.Contains(err.Error(), "spec.http.users[0].passwordHash: is not a bcrypt hash") || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("the refusal is %v", err)
	}
}

func TestRightRoutesAreAccepted(t *testing.T) {
	for _, given := range []string{
		"{host: shop.example.org, backends: [{service: api}]}",
		"{host: '*.example.org', path: /v2/, tls: {mode: auto}, backends: [{service: api, port: 80, weight: 0}, {service: b}], allow: [192.0.2.7, '2001:db8::/32']}",
		"{host: localhost, tls: {mode: cluster}, backends: [{service: api}], http: {timeout: 0s, idleTimeout: 0s, pin: {cookie: canary}}}",
		"{host: a.org, backends: [{service: api}], http: {users: [{name: ann, passwordHash: '" + hash10 + "'}, {name: bob}]}}",
		"{tcp: 5432, tls: {mode: own, certificate: db}, proxyProtocol: v2, nodes: 'zone=eu', backends: [{service: db, port: 5432}]}",
		"{udp: 53, backends: [{service: dns}]}",
	} {
		if _, err := Decode("f", []byte(route(given))); err != nil {
			t.Errorf("%s is refused: %v", given, err)
		}
	}
}

// The same route in another notation is the same, and the canonical form stays as it is.
func TestRoutesMeanTheSame(t *testing.T) {
	decode := func(text string) *v1.Route {
		docs, err := Decode("f", []byte(route(text)))
		if err != nil {
			t.Fatal(err)
		}
		r := docs[0].Message.(*v1.Route)
		NormalizeRoute(r)
		return r
	}
	short := decode("{host: a.org, backends: [{service: api, port: 80}], tls: {mode: auto}, allow: [192.0.2.9/24, '::ffff:192.0.2.7', 192.0.2.7/32], http: {maxBody: 1024Ki}}")
	long := decode("{host: a.org, path: /, backends: [{service: api, port: 80, weight: 1}], tls: {mode: auto}, allow: [192.0.2.0/24, 192.0.2.7, 192.0.2.7], " +
		"http: {plain: redirect, timeout: 60s, connectTimeout: 5000ms, idleTimeout: 60m, retries: 2, maxHeaders: 65536, maxBody: 1Mi}}")
	if diff := DiffObject(short, long); len(diff) > 0 {
		t.Errorf("the same differs in %v", diff)
	}
	again := proto.CloneOf(short)
	if NormalizeRoute(again); !proto.Equal(short, again) {
		t.Errorf("the canonical form of %v is %v", short, again)
	}
	if tcp := decode("{tcp: 1, backends: [{service: a}]}"); tcp.GetSpec().GetHttp() != nil || tcp.GetSpec().GetPath() != "" || RouteTLS(tcp.GetSpec()) != TLSOff {
		t.Errorf("a TCP route is %v", tcp)
	}
}

func TestNamesOfRoutes(t *testing.T) {
	for want, s := range map[string]*v1.RouteSpec{
		"shop-example-org":      {Host: "shop.example.org"},
		"shop-example-org-v2":   {Host: "shop.example.org", Path: "/v2/"},
		"any-example-org":       {Host: "*.example.org"},
		"tcp-5432":              {Tcp: 5432},
		"udp-53":                {Udp: 53},
		"a-org-v2-4ce4bbe5":     {Host: "a.org", Path: "/V2"},
		"a-org-a--b-x-0401c700": {Host: "a.org", Path: "/a~-b/x"},
	} {
		if got := RouteName(s); got != want {
			t.Errorf("the name of %v is %s, want %s", s, got, want)
		}
	}
}

// The name of any route is valid, and no two routes share one, unless only dots and slashes tell them apart.
func TestNamesOfRoutesDiffer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		label := rapid.StringMatching(`[a-z0-9]{1,30}`)
		some := func(name string) *v1.RouteSpec {
			s := &v1.RouteSpec{Host: strings.Join(rapid.SliceOfN(label, 1, 6).Draw(t, name), ".")}
			if rapid.Bool().Draw(t, "below") {
				s.Path = "/" + rapid.StringMatching(`[A-Za-z0-9_~%]{1,60}`).Draw(t, "path")
			}
			return s
		}
		a, b := some("one"), some("other")
		for _, s := range []*v1.RouteSpec{a, b} {
			r := &v1.Route{Metadata: &v1.Metadata{Name: RouteName(s)}, Spec: s}
			s.Backends = []*v1.RouteBackend{{Service: "a"}}
			if err := Validate(r); err != nil {
				t.Fatalf("%s, for %v: %v", r.GetMetadata().GetName(), s, err)
			}
		}
		flat := func(s *v1.RouteSpec) string { return strings.ReplaceAll(s.GetHost()+s.GetPath(), "/", ".") }
		if RouteName(a) == RouteName(b) && flat(a) != flat(b) {
			t.Fatalf("%v and %v are both named %s", a, b, RouteName(a))
		}
	})
}

func TestHostsOverlap(t *testing.T) {
	for _, test := range []struct {
		a, b string
		want bool
	}{
		{"a.example.org", "a.example.org", true},
		{"*.example.org", "a.example.org", true},
		{"*.example.org", "*.example.org", true},
		{"*.example.org", "example.org", false},
		{"*.example.org", "b.a.example.org", false},
		{"*.example.org", "*.a.example.org", false},
		{"a.example.org", "b.example.org", false},
	} {
		if got := HostsOverlap(test.a, test.b); got != test.want || HostsOverlap(test.b, test.a) != test.want {
			t.Errorf("%s and %s overlap: %t", test.a, test.b, got)
		}
	}
}

// An update without a password keeps the stored one of the same user; a new user needs one.
func TestPasswordsAreKept(t *testing.T) {
	users := func(all ...*v1.RouteUser) *v1.RouteSpec { return &v1.RouteSpec{Http: &v1.RouteHttp{Users: all}} }
	stored := users(&v1.RouteUser{Name: "ann", PasswordHash: hash10})
	wanted := users(&v1.RouteUser{Name: "bob", PasswordHash: hash15}, &v1.RouteUser{Name: "ann"})
	if at := KeepPasswords(wanted, stored); at != -1 || wanted.Http.Users[1].PasswordHash != hash10 || wanted.Http.Users[0].PasswordHash != hash15 {
		t.Errorf("%d, %v", at, wanted)
	}
	if at := KeepPasswords(users(&v1.RouteUser{Name: "eve"}), stored); at != 0 {
		t.Errorf("a new user without a password: %d", at)
	}
	whole := &v1.Route{Spec: wanted}
	if shown := WithoutPasswords(whole); strings.Contains(shown.String(), hash10) || whole.Spec.Http.Users[1].PasswordHash != hash10 || len(shown.Spec.Http.Users) != 2 {
		t.Errorf("shown is %v", shown)
	}
}

func TestIngressSettings(t *testing.T) {
	for want, c := range map[string]*v1.ClusterSpec{
		"spec.cluster.ingress.nodes: \"a b\" is not a label selector":        {Ingress: &v1.Ingress{Nodes: "a b"}},
		"spec.cluster.ingress.httpsPort: is 80, as httpPort is":              {Ingress: &v1.Ingress{HttpsPort: 80}},
		"spec.cluster.ingress.httpPort: 22 is the port of SSH":               {Ingress: &v1.Ingress{HttpPort: 22}},
		"spec.cluster.ingress.trustedProxies[0]: \"x\" is not an address":    {Ingress: &v1.Ingress{TrustedProxies: []string{"x"}}},
		"spec.cluster.ingress.trustedProxies[1]: 0.0.0.0/0 is every address": {Ingress: &v1.Ingress{TrustedProxies: []string{"192.0.2.7", "0.0.0.0/0"}}},
	} {
		if err := Validate(NewConfiguration("u", 1, "a", c)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v gives %v, want %q", c, err, want)
		}
	}
	c := &v1.ClusterSpec{}
	for _, set := range []string{"ingress.httpPort=8080", "ingress.trustedProxies=192.0.2.0/24, 198.51.100.7", "acme.dns.settings.API_TOKEN=x=y", "acme.dns.settings.ZONE=z", "acme.dns.settings.ZONE="} {
		key, value, err := ParseSetting(set)
		if err == nil {
			err = Set(c, key, value)
		}
		if err != nil {
			t.Errorf("%s: %v", set, err)
		}
	}
	shown := map[string]string{}
	for _, s := range Settings(c) {
		shown[s.Key] = s.Value
	}
	for key, want := range map[string]string{
		"ingress.httpPort": "8080", "ingress.httpsPort": "443", "ingress.trustedProxies": "192.0.2.0/24,198.51.100.7", "acme.dns.settings.API_TOKEN": "x=y", "acme.email": "none",
	} {
		if shown[key] != want {
			t.Errorf("%s is %q, want %q", key, shown[key], want)
		}
	}
	if _, there := shown["acme.dns.settings.ZONE"]; there {
		t.Error("an emptied setting is still there")
	}
}

package e2e

import (
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/cloudless/cloudless/test/openid"
)

// startOpenID runs an OpenID provider until the story ends. ISSUER is its address, and openid.pem its certificate.
func startOpenID(ts *testscript.TestScript, _ bool, _ []string) {
	provider, stop, err := openid.Open(ts.Getenv("WORK"))
	ts.Check(err)
	ts.Defer(stop)
	ts.Setenv("ISSUER", provider.Issuer)
}

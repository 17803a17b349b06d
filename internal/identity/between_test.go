package identity

import (
	"testing"
	"time"
)

func TestNodesAuthenticateEachOther(t *testing.T) {
	ca, other := newTestCA(t, testCluster), newTestCA(t, testCluster)
	here, there := issue(t, ca, time.Hour, KindNode, "n-1"), issue(t, ca, time.Hour, KindNode, "n-2")
	stranger := issue(t, other, time.Hour, KindNode, "n-2")
	server := issue(t, ca, time.Hour, KindServer, "s-1")
	for name, c := range map[string]struct {
		answers, calls *Credentials
		wanted         string
		ok             bool
	}{
		"a node calls another":                   {here, there, "n-1", true},
		"a node calls one and gets another":      {here, there, "n-3", false},
		"a server calls a node":                  {here, server, "n-1", false},
		"a server answers in place of a node":    {server, there, "s-1", false},
		"a node of another cluster calls":        {here, stranger, "n-1", false},
		"a node of another cluster is called":    {stranger, here, "n-2", false},
		"a user calls":                           {here, issue(t, ca, time.Hour, KindUser, "ann"), "n-1", false},
		"a program of a replica calls":           {here, issue(t, ca, time.Hour, KindWorkload, "default", "web"), "n-1", false},
		"a node calls whose certificate is over": {here, expired(t, ca), "n-1", false},
	} {
		_, serverErr, clientErr := shake(t, NodeServerTLS(ca.Trust(), c.answers.Certificate), NodeClientTLS(ca.Trust(), c.calls.Certificate, c.wanted))
		if ok := serverErr == nil && clientErr == nil; ok != c.ok {
			t.Errorf("%s: server: %v, client: %v", name, serverErr, clientErr)
		}
	}
	anonymous := NodeClientTLS(ca.Trust(), here.Certificate, "n-1")
	anonymous.GetClientCertificate = nil
	if _, serverErr, clientErr := shake(t, NodeServerTLS(ca.Trust(), here.Certificate), anonymous); serverErr == nil || clientErr == nil {
		t.Errorf("a caller without a certificate is answered: server: %v, client: %v", serverErr, clientErr)
	}
}

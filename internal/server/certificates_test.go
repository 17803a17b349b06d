package server

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

func (u *user) certificates() v1.CertificateServiceClient {
	return v1.NewCertificateServiceClient(u.conn)
}

// ownCertificate is a certificate that a user brings, with its key.
func ownCertificate(t *testing.T, name string, lives time.Duration, hosts ...string) (*v1.Certificate, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(7), DNSNames: hosts, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(lives)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	must(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	return &v1.Certificate{Metadata: &v1.Metadata{Name: name}, Spec: &v1.CertificateSpec{Chain: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))}},
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})
}

func TestUsersBringTheirOwnCertificates(t *testing.T) {
	c := newCluster(t)
	op, viewer := c.as(core.RoleOperator), c.as(core.RoleViewer)
	given, key := ownCertificate(t, "shop", 60*24*time.Hour, "shop.example.org")
	made, err := op.certificates().CreateCertificate(c.ctx, &v1.CreateCertificateRequest{Certificate: given, Key: key, IdempotencyKey: "once"})
	must(t, err)
	status := made.GetStatus()
	if made.GetSpec().GetSource() != spec.TLSOwn || made.GetSpec().GetHosts()[0] != "shop.example.org" || status.GetState() != spec.CertificateReady || status.GetKeyVersion() != 1 || status.GetProblem() != "" {
		t.Errorf("it is %v", made)
	}
	again, err := op.certificates().CreateCertificate(c.ctx, &v1.CreateCertificateRequest{Certificate: given, Key: key, IdempotencyKey: "once"})
	must(t, err)
	if again.GetMetadata().GetUid() != made.GetMetadata().GetUid() {
		t.Errorf("a repeated call made %v", again)
	}
	_, err = op.certificates().CreateCertificate(c.ctx, &v1.CreateCertificateRequest{Certificate: given, Key: key})
	wantCode(t, err, codes.AlreadyExists, "certificate shop exists already in namespace default")

	apply := func(certificate *v1.Certificate, key []byte) *v1.ApplyCertificateResponse {
		t.Helper()
		answer, err := op.certificates().ApplyCertificate(c.ctx, &v1.ApplyCertificateRequest{Certificate: certificate, Key: key})
		must(t, err)
		return answer
	}
	if answer := apply(given, key); answer.GetResult() != "unchanged" {
		t.Errorf("the same again is %s", answer.GetResult())
	}
	other, otherKey := ownCertificate(t, "shop", 3*24*time.Hour, "shop.example.org")
	answer := apply(other, otherKey)
	if now := answer.GetCertificate(); answer.GetResult() != "updated" || now.GetStatus().GetKeyVersion() != 2 || !strings.Contains(now.GetStatus().GetProblem(), "it expires on ") {
		t.Errorf("one that expires in three days is %v", answer)
	}

	// The state has the key, sealed; nothing that users see has it.
	uid := made.GetMetadata().GetUid()
	sealed := c.Store.Snapshot().CertificateKey(uid).GetSealed()
	opened, err := c.sealer.Unseal(sealed, state.CertificateKeyContext(uid))
	must(t, err)
	if !bytes.Equal(opened, otherKey) || bytes.Contains(sealed, otherKey[30:60]) {
		t.Error("the stored key is another one, or open")
	}
	list, err := viewer.certificates().ListCertificates(c.ctx, &v1.ListCertificatesRequest{})
	must(t, err)
	events, err := viewer.ListEvents(c.ctx, &v1.ListEventsRequest{})
	must(t, err)
	for _, shown := range []proto.Message{made, answer, list, events} {
		if text := prototext.Format(shown); strings.Contains(text, "PRIVATE KEY") {
			t.Errorf("an answer has a key: %s", text)
		}
	}
	if len(list.GetItems()) != 1 {
		t.Errorf("the list is %v", list)
	}
	_, err = viewer.certificates().DeleteCertificate(c.ctx, &v1.DeleteCertificateRequest{Name: "shop"})
	wantCode(t, err, codes.PermissionDenied)
	_, err = op.certificates().DeleteCertificate(c.ctx, &v1.DeleteCertificateRequest{Name: "shop"})
	must(t, err)
	if snap := c.Store.Snapshot(); snap.CertificateKey(uid) != nil || snap.Certificate(uid) != nil {
		t.Error("something is left of it")
	}
	_, err = viewer.certificates().GetCertificate(c.ctx, &v1.GetCertificateRequest{Name: "shop"})
	wantCode(t, err, codes.NotFound, "certificate shop does not exist in namespace default")
}

func TestBadCertificatesAreRefused(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	good, key := ownCertificate(t, "shop", time.Hour, "shop.example.org")
	_, otherKey := ownCertificate(t, "shop", time.Hour, "shop.example.org")
	expired, expiredKey := ownCertificate(t, "shop", -time.Minute, "shop.example.org")
	reserved, auto := proto.CloneOf(good), proto.CloneOf(good)
	reserved.Metadata.Name, auto.Spec.Source = "tls-shop", "auto"
	for words, wrong := range map[string]*v1.CreateCertificateRequest{
		"key: does not belong to the certificate of shop.example.org": {Certificate: good, Key: otherKey},
		"certificate.spec.chain: has expired on ":                     {Certificate: expired, Key: expiredKey},
		"metadata.name: must not begin with tls-":                     {Certificate: reserved, Key: key},
		"spec.source: must be own, or left out":                       {Certificate: auto, Key: key},
	} {
		_, err := op.certificates().CreateCertificate(c.ctx, wrong)
		wantCode(t, err, codes.InvalidArgument, words)
	}
}

func TestCertificatesInUseStay(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	given, key := ownCertificate(t, "shop", 60*24*time.Hour, "shop.example.org")
	_, err := op.certificates().CreateCertificate(c.ctx, &v1.CreateCertificateRequest{Certificate: given, Key: key})
	must(t, err)
	c.change(func(_ *state.Snapshot, b *state.Batch) {
		b.Create(&v1.Route{Metadata: &v1.Metadata{Uid: "r1", Namespace: "default", Name: "web"}, Spec: &v1.RouteSpec{
			Host: "shop.example.org", Tls: &v1.RouteTls{Mode: spec.TLSOwn, Certificate: "shop"},
		}})
		b.Create(&v1.Certificate{Metadata: &v1.Metadata{Uid: "c1", Namespace: "default", Name: "tls-api-example-org"}, Spec: &v1.CertificateSpec{
			Source: spec.TLSAuto, Hosts: []string{"api.example.org"},
		}})
	})
	_, err = op.certificates().DeleteCertificate(c.ctx, &v1.DeleteCertificateRequest{Name: "shop"})
	wantCode(t, err, codes.FailedPrecondition, "certificate shop is used by 1 route web", "cloudless route rm web")
	_, err = op.certificates().DeleteCertificate(c.ctx, &v1.DeleteCertificateRequest{Name: "tls-api-example-org"})
	wantCode(t, err, codes.FailedPrecondition, "is made by the cluster for the routes of api.example.org, and leaves with the last of them")
}

// What a user says about a DNS provider is stored sealed, in no answer, and kept if it is left empty.
func TestSecretsOfDNSProvidersAreWriteOnly(t *testing.T) {
	c := newCluster(t)
	admin := c.as(core.RoleAdmin)
	const secret = "a-very-secret-token"
	dns := func(provider string, settings map[string]string) func(*v1.ClusterSpec) {
		return func(s *v1.ClusterSpec) {
			s.Acme = &v1.Acme{Email: "ops@example.org", Dns: &v1.AcmeDns{Provider: provider, Settings: settings}}
		}
	}
	stored := func() string {
		return c.Store.Snapshot().Cluster().GetSpec().GetAcme().GetDns().GetSettings()["apiToken"]
	}
	shown := c.mustSet(admin, dns("cloudflare", map[string]string{"apiToken": secret}))
	first := stored()
	if !strings.HasPrefix(first, "sealed:") {
		t.Fatalf("stored is %q", first)
	}
	// Neither another change of the answer nor the same value again changes what is stored.
	c.mustSet(admin, voters(5))
	if unchanged := c.mustSet(admin, dns("cloudflare", map[string]string{"apiToken": secret})); unchanged.GetSpec().GetNumber() != 3 || stored() != first {
		t.Errorf("the same value made %v", unchanged)
	}
	rotated := c.mustSet(admin, dns("cloudflare", map[string]string{"apiToken": "sealed:" + secret}))
	if stored() == first {
		t.Error("another value is not stored")
	}
	if changes := rotated.GetSpec().GetChanges(); len(changes) != 1 || changes[0].GetAfter() != "a new value" {
		t.Errorf("the changes are %v", changes)
	}
	back, err := admin.RollbackConfiguration(c.ctx, &v1.RollbackConfigurationRequest{Number: 3})
	must(t, err)
	if stored() != first {
		t.Error("a rollback does not bring the value back")
	}
	// A value is never given to another provider.
	_, err = c.set(admin, dns("digitalocean", map[string]string{"apiToken": ""}))
	wantCode(t, err, codes.InvalidArgument, "spec.cluster.acme.dns.settings[apiToken]: is empty, and no value of digitalocean is stored")

	cluster, err := admin.GetCluster(c.ctx, &v1.GetClusterRequest{})
	must(t, err)
	history, err := admin.ListConfigurations(c.ctx, &v1.ListConfigurationsRequest{})
	must(t, err)
	events, err := admin.ListEvents(c.ctx, &v1.ListEventsRequest{})
	must(t, err)
	for _, one := range []proto.Message{shown, rotated, back, cluster, history, events, c.current(admin)} {
		if text := prototext.Format(one); strings.Contains(text, secret) || strings.Contains(text, "sealed:") {
			t.Errorf("an answer has what is sealed: %s", text)
		}
	}
	if _, has := cluster.GetSpec().GetAcme().GetDns().GetSettings()["apiToken"]; !has {
		t.Error("an answer does not show that there is a value")
	}
}

func TestBadACMESettingsAreRefused(t *testing.T) {
	c := newCluster(t)
	admin := c.as(core.RoleAdmin)
	for words, wrong := range map[string]*v1.Acme{
		"spec.cluster.acme.directory: must be the address":                        {Directory: "http://acme.example.org"},
		"spec.cluster.acme.email: must be one e-mail address":                     {Email: "ops"},
		"spec.cluster.acme.ca: is not PEM":                                        {Ca: "x"},
		"did you mean cloudflare?":                                                {Dns: &v1.AcmeDns{Provider: "cloudflar"}},
		"spec.cluster.acme.dns.settings[token]: is not a setting of cloudflare":   {Dns: &v1.AcmeDns{Provider: "cloudflare", Settings: map[string]string{"token": "x", "apiToken": "x"}}},
		"spec.cluster.acme.dns.settings[apiToken]: is missing: cloudflare needs":  {Dns: &v1.AcmeDns{Provider: "cloudflare"}},
		"spec.cluster.acme.dns.provider: is missing: the settings are those of a": {Dns: &v1.AcmeDns{Settings: map[string]string{"apiToken": "x"}}},
		"is too long: it may have at most 2048 bytes":                             {Dns: &v1.AcmeDns{Provider: "cloudflare", Settings: map[string]string{"apiToken": strings.Repeat("x", 2049)}}},
	} {
		_, err := c.set(admin, func(s *v1.ClusterSpec) { s.Acme = wrong })
		wantCode(t, err, codes.InvalidArgument, words)
	}
}

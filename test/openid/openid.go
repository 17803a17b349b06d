// Package openid is a real OpenID provider for tests: npm's oidc-provider as a process of its own, and a browser without a
// screen that a user logs in with. It needs node and npm (make test-deps), and must know nothing of Cloudless but the
// address to which its client is redirected.
package openid

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/lockedfile"
)

// ClientID is what the provider knows Cloudless as.
const ClientID = "cloudless"

// Provider is a running provider.
type Provider struct {
	// Issuer is its address, with https.
	Issuer string
	// CA is the certificate in PEM that it shows.
	CA string
}

// Start runs a provider until the test ends.
func Start(t testing.TB) *Provider {
	t.Helper()
	if _, err := exec.LookPath("node"); err != nil && testing.Short() {
		t.Skip("node is missing")
	}
	p, stop, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return p
}

// Open runs a provider until stop is called. It keeps its key in a folder.
func Open(folder string) (_ *Provider, stop func(), err error) {
	dir, err := installed()
	if err != nil {
		return nil, nil, err
	}
	key, certificate, err := selfSigned()
	if err != nil {
		return nil, nil, err
	}
	keyFile, certificateFile := filepath.Join(folder, "openid-key.pem"), filepath.Join(folder, "openid.pem")
	for file, data := range map[string][]byte{keyFile: key, certificateFile: certificate} {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			return nil, nil, err
		}
	}
	cmd := exec.Command("node", filepath.Join(dir, "main.mjs"), keyFile, certificateFile)
	input, err := cmd.StdinPipe() // the provider ends with its input, and so with this process
	if err != nil {
		return nil, nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	var said strings.Builder
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		return nil, nil, fmt.Errorf("start the provider: %w", err)
	}
	stop = func() {
		_ = input.Close()
		_ = cmd.Wait()
	}
	issuer, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		stop()
		return nil, nil, fmt.Errorf("the provider did not start: %w\n%s", err, said.String())
	}
	return &Provider{Issuer: strings.TrimSpace(issuer), CA: string(certificate)}, stop, nil
}

// installed returns the folder of the provider, after npm has put what the lock file names beside it.
func installed() (string, error) {
	_, here, _, _ := runtime.Caller(0)
	dir := filepath.Join(filepath.Dir(here), "provider")
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			return "", fmt.Errorf("%s is missing: run make test-deps", program)
		}
	}
	unlock, err := lockedfile.MutexAt(filepath.Join(os.TempDir(), "cloudless-test-openid.lock")).Lock()
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(filepath.Join(dir, "node_modules", ".package-lock.json")); err == nil {
		return dir, nil
	}
	install := exec.Command("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	install.Dir = dir
	if said, err := install.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm ci: %w\n%s", err, said)
	}
	return dir, nil
}

// selfSigned is a key and a certificate for 127.0.0.1.
func selfSigned() (key, certificate []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	about := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, about, about, &private.PublicKey, private)
	if err != nil {
		return nil, nil, err
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded}), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

// Browser is what a user logs in with: it follows redirects, keeps cookies, and fills in the provider's forms.
type Browser struct{ http *http.Client }

// NewBrowser returns a browser that trusts the provider.
func (p *Provider) NewBrowser() (*Browser, error) { return NewBrowser([]byte(p.CA)) }

// NewBrowser returns a browser that trusts certificates in PEM.
func NewBrowser(ca []byte) (*Browser, error) {
	jar, err := cookiejar.New(nil)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig.RootCAs = roots
	transport.DisableKeepAlives = true
	return &Browser{&http.Client{Jar: jar, Transport: transport, Timeout: time.Minute}}, nil
}

var (
	formTag   = regexp.MustCompile(`(?s)<form[^>]*\baction="([^"]*)"[^>]*>(.*?)</form>`)
	inputTag  = regexp.MustCompile(`(?s)<input\b[^>]*>`)
	attribute = regexp.MustCompile(`\b(name|value|type)="([^"]*)"`)
)

// mostForms bounds how many pages a login may have.
const mostForms = 8

// LogIn opens an address and fills in every form as the user, until a page has none. It returns the text of that page.
func (b *Browser) LogIn(ctx context.Context, address, user string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return "", err
	}
	for range mostForms {
		response, err := b.http.Do(request)
		if err != nil {
			return "", err
		}
		page, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err != nil {
			return "", err
		}
		form := formTag.FindStringSubmatch(string(page))
		if form == nil || response.StatusCode != http.StatusOK {
			if response.StatusCode != http.StatusOK {
				return "", fmt.Errorf("%s answers %s: %s", response.Request.URL, response.Status, page)
			}
			return string(page), nil
		}
		if request, err = submit(ctx, response.Request.URL, form[1], form[2], user); err != nil {
			return "", err
		}
	}
	return "", errors.New("the provider shows one form after the other")
}

// submit is the request of a form that the user has filled in.
func submit(ctx context.Context, page *url.URL, action, inputs, user string) (*http.Request, error) {
	values := url.Values{}
	for _, input := range inputTag.FindAllString(inputs, -1) {
		is := map[string]string{}
		for _, a := range attribute.FindAllStringSubmatch(input, -1) {
			is[a[1]] = a[2]
		}
		switch is["name"] {
		case "":
		case "login", "password":
			values.Set(is["name"], user)
		default:
			values.Set(is["name"], is["value"])
		}
	}
	to, err := page.Parse(action)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, to.String(), strings.NewReader(values.Encode()))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return request, nil
}

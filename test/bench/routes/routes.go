// Package routes measures the ingress against Debian's nginx: both pass requests by TLS on to the same backend, in turns,
// with the same client.
//
// It must not know how figures are recorded.
package routes

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/ingressd"
	"github.com/cloudless/cloudless/internal/sleep"
)

const (
	host = "route.bench.test"
	// connections is how many the client has, and body how large an answer is.
	connections, body = 64, 1024
	// round is how long each measurement takes, and rounds how many there are of each.
	round, rounds = 4 * time.Second, 5
	routes        = 1000
)

// Rig is a backend, nginx and the ingress, each with a port.
type Rig struct {
	dir            string
	nginx, ingress int
	processes      []*exec.Cmd
	client         *ingressd.Client
}

// New starts everything in a folder, with the program of the ingress.
func New(ctx context.Context, dir, program string) (_ *Rig, err error) {
	r := &Rig{dir: filepath.Join(dir, "routes")}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Close())
		}
	}()
	for _, folder := range []string{r.dir, filepath.Join(r.dir, "run")} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return nil, err
		}
	}
	ports, err := freePorts(4)
	if err != nil {
		return nil, err
	}
	backend, plain := ports[0], ports[3]
	r.nginx, r.ingress = ports[1], ports[2]
	chain, key, err := certificate(host)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(os.WriteFile(filepath.Join(r.dir, "chain.pem"), chain, 0o600), os.WriteFile(filepath.Join(r.dir, "key.pem"), key, 0o600)); err != nil {
		return nil, err
	}
	err = errors.Join(
		r.startNginx(ctx, "backend", 1, fmt.Sprintf("server { listen 127.0.0.1:%d reuseport; location / { default_type text/plain; return 200 %q; } }", backend, strings.Repeat("x", body))),
		r.startNginx(ctx, "proxy", 2, fmt.Sprintf(`
			upstream backend { server 127.0.0.1:%d; keepalive 64; keepalive_requests 100000000; }
			server {
				listen 127.0.0.1:%d ssl;
				ssl_certificate %s/chain.pem; ssl_certificate_key %s/key.pem;
				location / {
					proxy_pass http://backend; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host $host;
					proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for; proxy_set_header X-Forwarded-Proto $scheme;
				}
			}`, backend, r.nginx, r.dir, r.dir)),
	)
	if err != nil {
		return nil, err
	}
	r.client, err = ingressd.Start(ctx, ingressd.Options{Dir: filepath.Join(r.dir, "run"), LogDir: r.dir, Program: func() (string, error) { return program, nil }})
	if err != nil {
		return nil, err
	}
	down := &v1.IngressDown{Full: true, Settings: &v1.Ingress{HttpPort: int32(plain), HttpsPort: int32(r.ingress)}, Services: []*v1.IngressService{{
		Uid: "s", Ports: []*v1.IngressServicePort{{Port: 80, TargetPort: int32(backend)}}, Endpoints: []*v1.IngressEndpoint{{Id: "e", Addresses: []string{"127.0.0.1"}, State: "ready", Weight: 1}},
	}}}
	add(down, host, chain, key)
	if err := r.client.Send(down); err != nil {
		return nil, err
	}
	return r, errors.Join(r.answers(ctx, r.nginx), r.answers(ctx, r.ingress))
}

func add(down *v1.IngressDown, host string, chain, key []byte) {
	down.Routes = append(down.Routes, &v1.IngressRoute{
		Uid: host, Namespace: "default", Name: host, CertificateUid: host, ServiceUids: []string{"s"},
		Spec: &v1.RouteSpec{Host: host, Tls: &v1.RouteTls{Mode: "own"}, Backends: []*v1.RouteBackend{{Service: "web"}}},
	})
	down.Certificates = append(down.Certificates, &v1.IngressCertificate{Uid: host, Chain: string(chain), Key: key})
}

// Close ends everything.
func (r *Rig) Close() (err error) {
	if r.client != nil {
		err = r.client.Stop()
	}
	for _, p := range r.processes {
		_ = p.Process.Signal(os.Interrupt) // it may have ended
		_ = p.Wait()                       // a signal ends it
	}
	return err
}

func (r *Rig) startNginx(ctx context.Context, name string, workers int, servers string) error {
	file := filepath.Join(r.dir, name+".conf")
	temporary := ""
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		temporary += fmt.Sprintf("%s_temp_path %s/%s-%s; ", kind, r.dir, name, kind)
	}
	text := fmt.Sprintf("daemon off; user root; worker_processes %d; pid %s/%s.pid; error_log %s/%s.log; events { worker_connections 4096; }\nhttp { access_log off; keepalive_requests 100000000; %s\n%s }\n",
		workers, r.dir, name, r.dir, name, temporary, servers)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return err
	}
	command := exec.CommandContext(ctx, "nginx", "-c", file)
	command.Stderr = os.Stderr
	command.Cancel = func() error { return command.Process.Signal(os.Interrupt) } // its workers end with it
	if err := command.Start(); err != nil {
		return fmt.Errorf("start nginx, which is in Debian's package nginx-light: %w", err)
	}
	r.processes = append(r.processes, command)
	return nil
}

func freePorts(n int) (all []int, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close() // all are open until the last is found
		all = append(all, l.Addr().(*net.TCPAddr).Port)
	}
	return all, nil
}

func certificate(host string) (chain, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{host}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		return nil, nil, err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), nil
}

// answers waits until a port answers by TLS.
func (r *Rig) answers(ctx context.Context, port int) error {
	for range 200 {
		err := handshake(ctx, port, host)
		if err == nil {
			return nil
		}
		if err := sleep.For(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
	return fmt.Errorf("port %d does not answer; see the logs in %s", port, r.dir)
}

func handshake(ctx context.Context, port int, host string) error {
	d := tls.Dialer{Config: &tls.Config{ServerName: host, InsecureSkipVerify: true}} // the certificate is made above
	conn, err := d.DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return err
	}
	return conn.Close()
}

var perSecond = regexp.MustCompile(`finished in [^,]+, ([0-9.]+) req/s`)

// load has h2load make requests, as many as it can or at a rate.
func (r *Rig) load(ctx context.Context, port, rate int) (requests float64, p99 time.Duration, err error) {
	log := filepath.Join(r.dir, "requests.log")
	args := []string{"--h1", "-c", strconv.Itoa(connections), "-t", "1", "-D", strconv.Itoa(int(round.Seconds())), "--connect-to", fmt.Sprintf("127.0.0.1:%d", port)}
	if rate > 0 {
		args = append(args, "--rps", strconv.Itoa(max(rate/connections, 1)), "--log-file", log)
	}
	_ = os.Remove(log) // of an earlier round
	out, err := exec.CommandContext(ctx, "h2load", append(args, fmt.Sprintf("https://%s:%d/", host, port))...).CombinedOutput()
	if err != nil {
		return 0, 0, fmt.Errorf("h2load: %w\n%s", err, out)
	}
	found := perSecond.FindSubmatch(out)
	if found == nil || !strings.Contains(string(out), " 0 failed, 0 errored, 0 timeout") {
		return 0, 0, fmt.Errorf("h2load reports failures:\n%s", out)
	}
	if requests, err = strconv.ParseFloat(string(found[1]), 64); err != nil || rate == 0 {
		return requests, 0, err
	}
	p99, err = quantile(log, 0.99)
	return requests, p99, err
}

// quantile reads h2load's log: when each request began, its status and the microseconds that it took.
func quantile(path string, q float64) (time.Duration, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var all []int
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 3 || fields[1] != "200" {
			return 0, fmt.Errorf("a request failed: %s", lines.Text())
		}
		us, err := strconv.Atoi(fields[2])
		if err != nil {
			return 0, err
		}
		all = append(all, us)
	}
	if len(all) == 0 {
		return 0, errors.New("no request was logged")
	}
	slices.Sort(all)
	return time.Duration(all[int(q*float64(len(all)-1))]) * time.Microsecond, nil
}

func median[T ~int64 | ~float64](all []T) T {
	slices.Sort(all)
	return all[len(all)/2]
}

// Throughput returns the requests a second through the ingress and through nginx, medians of rounds in turns.
func (r *Rig) Throughput(ctx context.Context) (ingress, nginx float64, err error) {
	var ours, theirs []float64
	for range rounds {
		for _, turn := range []struct {
			port int
			all  *[]float64
		}{{r.ingress, &ours}, {r.nginx, &theirs}} {
			n, _, err := r.load(ctx, turn.port, 0)
			if err != nil {
				return 0, 0, err
			}
			*turn.all = append(*turn.all, n)
		}
	}
	return median(ours), median(theirs), nil
}

// Latency returns the P99 through the ingress and through nginx at the same rate, medians of rounds in turns.
func (r *Rig) Latency(ctx context.Context, rate int) (ingress, nginx time.Duration, err error) {
	var ours, theirs []time.Duration
	for range rounds {
		for _, turn := range []struct {
			port int
			all  *[]time.Duration
		}{{r.ingress, &ours}, {r.nginx, &theirs}} {
			_, p99, err := r.load(ctx, turn.port, rate)
			if err != nil {
				return 0, 0, err
			}
			*turn.all = append(*turn.all, p99)
		}
	}
	return median(ours), median(theirs), nil
}

// Memory returns the resident memory of the ingress in MB with a thousand routes and certificates, each used once.
func (r *Rig) Memory(ctx context.Context) (float64, error) {
	down := &v1.IngressDown{}
	for i := range routes {
		name := fmt.Sprintf("route-%d.bench.test", i)
		chain, key, err := certificate(name)
		if err != nil {
			return 0, err
		}
		add(down, name, chain, key)
	}
	if err := r.client.Send(down); err != nil {
		return 0, err
	}
	for _, route := range down.GetRoutes() {
		for try := 0; ; try++ {
			err := handshake(ctx, r.ingress, route.GetUid())
			if err == nil {
				break
			}
			if try == 50 {
				return 0, fmt.Errorf("route %s: %w", route.GetUid(), err)
			}
			if err := sleep.For(ctx, 100*time.Millisecond); err != nil {
				return 0, err
			}
		}
	}
	return r.rss()
}

// rss is the resident memory of the process that listens in the rig's folder.
func (r *Rig) rss() (float64, error) {
	statuses, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return 0, err
	}
	for _, path := range statuses {
		line, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(line), filepath.Join(r.dir, "run")) || !strings.Contains(string(line), "cloudless-ingress") {
			continue
		}
		status, err := os.ReadFile(filepath.Join(filepath.Dir(path), "status"))
		if err != nil {
			return 0, err
		}
		for text := range strings.Lines(string(status)) {
			if rest, ok := strings.CutPrefix(text, "VmRSS:"); ok {
				kb, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
				return kb / 1024, err
			}
		}
	}
	return 0, errors.New("the ingress process is not there")
}

package route

import (
	"context"
	"crypto/tls"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/terminal"
	"github.com/cloudless/cloudless/internal/spec"
)

// AddCertificate is the command cloudless certificate add.
func AddCertificate(e *command.Env) *cobra.Command {
	var chain, key string
	var labels []string
	var update bool
	cmd := &cobra.Command{
		Use:   "add NAME --cert FILE --key FILE",
		Short: "Store a certificate of yours with its key",
		Long: "Add stores a certificate for routes with --tls own. The files are PEM: the certificate first, then those of its\n" +
			"authorities; and its private key. The key is encrypted in the cluster, and no command ever shows it. To replace a\n" +
			"certificate before it expires, add --update: routes use the new one at once.",
		Example: "  cloudless certificate add shop --cert fullchain.pem --key privkey.pem\n  cloudless certificate add shop --cert fullchain.pem --key privkey.pem --update",
		Args:    command.ExactArgs("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, secret, err := readCertificate(cmd, args[0], chain, key)
			if err != nil {
				return err
			}
			c.Metadata.Namespace = e.Namespace
			if c.Metadata.Labels, err = command.ParsePairs("label", labels, nil); err != nil {
				return command.Usagef(cmd, "%w", err)
			}
			return e.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, _ []string) error {
				now, result, err := writeCertificate(ctx, cl, c, secret, update)
				if err != nil {
					return err
				}
				if !e.ForPeople() {
					return e.PrintObject(now)
				}
				return e.Printf("certificate %s %s, for %s\n", now.GetMetadata().GetName(), result, strings.Join(now.GetSpec().GetHosts(), ", "))
			})(cmd, args)
		},
	}
	cmd.Flags().StringVar(&chain, "cert", "", "`file` with the certificate and those of its authorities")
	cmd.Flags().StringVar(&key, "key", "", "`file` with the private key")
	cmd.Flags().StringArrayVarP(&labels, "label", "l", nil, "label `KEY=VALUE` of the certificate; may be repeated")
	cmd.Flags().BoolVar(&update, "update", false, "replace the certificate if it exists already")
	return cmd
}

// readCertificate reads both files, and refuses a key that does not belong to the certificate before it leaves this machine.
func readCertificate(cmd *cobra.Command, name, chain, key string) (*v1.Certificate, []byte, error) {
	for _, f := range []struct{ flag, file string }{{"--cert", chain}, {"--key", key}} {
		if f.file == "" {
			return nil, nil, command.Usagef(cmd, "%s is missing: %s", f.flag, cmd.UseLine())
		}
	}
	public, err := os.ReadFile(chain)
	if err != nil {
		return nil, nil, fmt.Errorf("--cert: %w", err)
	}
	secret, err := os.ReadFile(key)
	if err != nil {
		return nil, nil, fmt.Errorf("--key: %w", err)
	}
	if _, err := tls.X509KeyPair(public, secret); err != nil {
		return nil, nil, fmt.Errorf("%s and %s are no certificate with its key in PEM: %s", chain, key, strings.TrimPrefix(err.Error(), "tls: "))
	}
	return &v1.Certificate{
		ApiVersion: spec.APIVersion, Kind: "Certificate", Metadata: &v1.Metadata{Name: name}, Spec: &v1.CertificateSpec{Source: spec.TLSOwn, Chain: string(public)},
	}, secret, nil
}

func writeCertificate(ctx context.Context, cl *client.Client, c *v1.Certificate, key []byte, update bool) (now *v1.Certificate, result string, err error) {
	calls := client.Service(cl, v1.NewCertificateServiceClient)
	if update {
		answer, err := calls.ApplyCertificate(ctx, &v1.ApplyCertificateRequest{Certificate: c, Key: key})
		return answer.GetCertificate(), answer.GetResult(), err
	}
	now, refused := calls.CreateCertificate(ctx, &v1.CreateCertificateRequest{Certificate: c, Key: key})
	if status.Code(refused) != codes.AlreadyExists {
		return now, "created", refused
	}
	m := c.GetMetadata()
	now, err = calls.GetCertificate(ctx, &v1.GetCertificateRequest{Namespace: m.GetNamespace(), Name: m.GetName()})
	if err == nil && strings.TrimSpace(now.GetSpec().GetChain()) == strings.TrimSpace(c.GetSpec().GetChain()) {
		return now, "unchanged", nil
	}
	return nil, "", fmt.Errorf("%w: give another name, or replace it with --update", refused)
}

// GetCertificate is the command cloudless certificate get.
func GetCertificate(e *command.Env) *cobra.Command {
	return &cobra.Command{
		Use: "get NAME", Short: "Show one certificate: its hosts, state and expiry",
		Example: "  cloudless certificate get tls-shop-example-org\n  cloudless certificate get tls-shop-example-org -o json",
		Args:    command.ExactArgs("NAME"),
		RunE: e.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, args []string) error {
			c, err := client.Service(cl, v1.NewCertificateServiceClient).GetCertificate(ctx, &v1.GetCertificateRequest{Namespace: e.Namespace, Name: args[0]})
			if err != nil {
				return err
			}
			if !e.ForPeople() {
				return e.PrintObject(c)
			}
			st := c.GetStatus()
			f := terminal.NewFacts(e.Stdout)
			f.Add("Name", c.GetMetadata().GetName())
			f.Add("Hosts", strings.Join(c.GetSpec().GetHosts(), ", "))
			f.Add("Source", c.GetSpec().GetSource())
			f.Add("State", st.GetState())
			f.Add("Issuer", st.GetIssuer())
			f.Add("Valid from", day(st.GetNotBefore()))
			f.Add("Expires", day(st.GetNotAfter()))
			f.Add("Next try", day(st.GetNextTry()))
			f.Add("Fingerprint", st.GetFingerprint())
			if st.GetFailures() > 0 {
				f.Add("Failures", fmt.Sprint(st.GetFailures()))
			}
			f.Add("Problem", st.GetProblem())
			f.Add("Age", command.Age(c.GetMetadata().GetCreateTime(), time.Now()))
			return f.Flush()
		}),
	}
}

func day(at *timestamppb.Timestamp) string {
	if at == nil {
		return ""
	}
	return at.AsTime().Format("2006-01-02 15:04 UTC")
}

// Expiry is when a certificate expires, for lists.
func Expiry(c *v1.Certificate) string { return day(c.GetStatus().GetNotAfter()) }

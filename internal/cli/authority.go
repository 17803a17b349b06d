package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/terminal"
	"github.com/cloudless/cloudless/internal/sleep"
)

func (c *cli) caCommand() *cobra.Command {
	return command.Group("ca", "Show and replace the keys that the cluster's trust is based on",
		"  cloudless ca status\n  cloudless ca rotate --wait\n  cloudless ca rotate --kek", c.caStatusCommand(), c.caShowCommand(), c.caRotateCommand())
}

func (c *cli) caShowCommand() *cobra.Command {
	return &cobra.Command{
		Use: "show", Short: "Print the certificates that other programs must trust, as PEM",
		Long: "Show prints the certificates of the authorities that this machine trusts for the cluster. Programs such as curl and S3\n" +
			"clients take them from a file.",
		Example: "  cloudless ca show > ca.pem\n  curl --cacert ca.pem https://SERVER:7700/healthz",
		Args:    command.ExactArgs(),
		RunE: c.WithClient(func(_ context.Context, cl *client.Client, _ *cobra.Command, _ []string) error {
			return c.Printf("%s", cl.CA())
		}),
	}
}

func (c *cli) caStatusCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show the certificate authority, the key-encryption key, and a rotation that runs",
		Long: "Status shows which authorities are trusted and until when, how much of what is sealed is sealed by the current\n" +
			"key-encryption key, and which members a rotation waits for.",
		Example: "  cloudless ca status\n  cloudless ca status -o json",
		Args:    command.ExactArgs(),
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, _ []string) error {
			report, err := client.Service(cl, cloudlessv1.NewAuthorityServiceClient).GetAuthority(ctx, &cloudlessv1.GetAuthorityRequest{})
			if err != nil {
				return err
			}
			if !c.ForPeople() {
				return c.PrintObject(report)
			}
			return c.printAuthority(report)
		}),
	}
}

func (c *cli) caRotateCommand() *cobra.Command {
	var request cloudlessv1.RotateAuthorityRequest
	var leave []string
	var only, unreachable, wait bool
	cmd := &cobra.Command{
		Use:   "rotate [--kek] [--leave NAME]",
		Short: "Replace the certificate authority, or the key-encryption key with it",
		Long: "Rotate replaces the certificate authority, and with it the keys of the gossip and of session tickets. Nothing stops:\n" +
			"all members learn to trust the new authority, get certificates of it by themselves, and then forget the old one.\n" +
			"With --kek, the key-encryption key is replaced, too; --only-kek replaces nothing else. The rotation waits for\n" +
			"members that cannot be reached for a day. Those that miss it must join again with a token. The removal of a server\n" +
			"begins both rotations by itself.",
		Example: "  cloudless ca rotate --wait\n  cloudless ca rotate --kek\n  cloudless ca rotate --leave old-laptop",
		Args:    command.ExactArgs(),
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, _ []string) error {
			request.Ca, request.LeaveUnreachable = !only, unreachable
			request.Kek = request.Kek || only
			service := client.Service(cl, cloudlessv1.NewAuthorityServiceClient)
			if len(leave) > 0 {
				uids, err := membersByName(ctx, cl, leave)
				if err != nil {
					return err
				}
				request.LeaveBehind = uids
			}
			return c.rotate(ctx, service, &request, wait)
		}),
	}
	flags := cmd.Flags()
	flags.BoolVar(&request.Kek, "kek", false, "replace the key-encryption key, too")
	flags.BoolVar(&only, "only-kek", false, "replace the key-encryption key and nothing else")
	flags.StringArrayVar(&leave, "leave", nil, "do not wait for this `member`; may be repeated")
	flags.BoolVar(&unreachable, "leave-unreachable", false, "do not wait for members that cannot be reached now")
	flags.BoolVar(&wait, "wait", false, "wait until the rotation is complete")
	return cmd
}

// secretRekeyCommand is a subcommand of secret.
func (c *cli) secretRekeyCommand() *cobra.Command {
	var wait bool
	cmd := &cobra.Command{
		Use:   "rekey",
		Short: "Replace the key-encryption key, and seal everything with the new one",
		Long: "Rekey replaces the key that wraps the keys of all secrets, and everything else that is sealed in the cluster's state.\n" +
			"Values do not change, and nothing stops. The same as cloudless ca rotate --only-kek.",
		Example: "  cloudless secret rekey\n  cloudless secret rekey --wait",
		Args:    command.ExactArgs(),
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, _ []string) error {
			return c.rotate(ctx, client.Service(cl, cloudlessv1.NewAuthorityServiceClient), &cloudlessv1.RotateAuthorityRequest{Kek: true}, wait)
		}),
	}
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until everything is sealed with the new key")
	return cmd
}

// membersByName are the uids of servers and nodes.
func membersByName(ctx context.Context, cl *client.Client, names []string) (uids []string, err error) {
	report, err := client.Service(cl, cloudlessv1.NewAuthorityServiceClient).GetAuthority(ctx, &cloudlessv1.GetAuthorityRequest{})
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		found := false
		for _, m := range append(report.GetWaiting(), report.GetKekWaiting()...) {
			if m.GetName() == name {
				uids, found = append(uids, m.GetUid()), true
			}
		}
		if !found {
			return nil, fmt.Errorf("no rotation waits for %q: see cloudless ca status for the members that one waits for", name)
		}
	}
	return uids, nil
}

// rotate begins a rotation, and shows its progress until it is complete if wait is set.
func (c *cli) rotate(ctx context.Context, service cloudlessv1.AuthorityServiceClient, request *cloudlessv1.RotateAuthorityRequest, wait bool) error {
	report, err := service.RotateAuthority(ctx, request)
	if err != nil {
		return err
	}
	if wait {
		if report, err = c.awaitRotation(ctx, service, report); err != nil {
			return err
		}
	}
	if !c.ForPeople() {
		return c.PrintObject(report)
	}
	if !wait && rotating(report) {
		c.Note("The rotation has begun and goes on by itself. Its progress: cloudless ca status")
	}
	return c.printAuthority(report)
}

func rotating(r *cloudlessv1.AuthorityReport) bool { return r.GetStep() != "" || r.GetKekStep() != "" }

// rotationPause is how often the progress of a rotation is asked for.
const rotationPause = 300 * time.Millisecond

func (c *cli) awaitRotation(ctx context.Context, service cloudlessv1.AuthorityServiceClient, report *cloudlessv1.AuthorityReport) (*cloudlessv1.AuthorityReport, error) {
	said := ""
	for rotating(report) {
		if now := progressOf(report); now != said {
			said = now
			c.Note("%s", now)
		}
		if sleep.For(ctx, rotationPause) != nil {
			c.Note("The rotation goes on by itself. Its progress: cloudless ca status")
			return nil, context.Cause(ctx)
		}
		next, err := service.GetAuthority(ctx, &cloudlessv1.GetAuthorityRequest{})
		switch {
		case ctx.Err() != nil, client.NoLeader(err): // the next round says so, or asks again
		case err != nil:
			return nil, errors.Join(err, errors.New("the rotation goes on by itself; its progress: cloudless ca status"))
		default:
			report = next
		}
	}
	return report, nil
}

// progressOf says in one line what a rotation does now.
func progressOf(r *cloudlessv1.AuthorityReport) string {
	var parts []string
	switch r.GetStep() {
	case "distribute":
		parts = append(parts, "all members learn to trust the new authority"+waitsFor(r.GetWaiting()))
	case "renew":
		parts = append(parts, "all members get certificates of the new authority"+waitsFor(r.GetWaiting()))
	case "drop":
		parts = append(parts, "all members forget the old authority"+waitsFor(r.GetWaiting()))
	}
	switch r.GetKekStep() {
	case "distribute":
		parts = append(parts, "all servers get the new key-encryption key"+waitsFor(r.GetKekWaiting()))
	case "seal":
		parts = append(parts, fmt.Sprintf("everything is sealed again (%d of %d)%s", r.GetSealed(), r.GetSealedTotal(), waitsFor(r.GetKekWaiting())))
	case "drop":
		parts = append(parts, "the old key-encryption key is removed"+waitsFor(r.GetKekWaiting()))
	}
	return strings.Join(parts, "; ")
}

// mostNamed bounds the members that one line names.
const mostNamed = 5

func waitsFor(members []*cloudlessv1.AuthorityMember) string {
	if len(members) == 0 {
		return ""
	}
	var names []string
	for _, m := range members[:min(len(members), mostNamed)] {
		name := m.GetKind() + " " + terminal.Plain(m.GetName())
		if !m.GetReachable() {
			name += " (cannot be reached)"
		}
		names = append(names, name)
	}
	more := ""
	if n := len(members) - len(names); n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	return ", waiting for " + strings.Join(names, ", ") + more
}

func (c *cli) printAuthority(r *cloudlessv1.AuthorityReport) error {
	f := terminal.NewFacts(c.Stdout)
	for _, one := range r.GetCertificates() {
		f.Add("Authority", fmt.Sprintf("%s, %s, until %s", one.GetFingerprint(), one.GetState(), day(one.GetExpireTime())))
	}
	f.Add("Replaced", since(r.GetRotateTime(), r.GetReason()))
	f.Add("Key-encryption key", fmt.Sprintf("%s, has sealed %d of %d values", r.GetKek(), r.GetSealed(), r.GetSealedTotal()))
	f.Add("Key replaced", since(r.GetKekRotateTime(), r.GetKekReason()))
	f.Add("Now", progressOf(r))
	for _, name := range r.GetUnreadable() {
		f.Add("Unreadable", terminal.Plain(name)+": no key opens it; set it again or delete it")
	}
	return f.Flush()
}

func day(t *timestamppb.Timestamp) string { return t.AsTime().Local().Format(time.DateOnly) }

// since says when and why a rotation began; empty if none did.
func since(t *timestamppb.Timestamp, reason string) string {
	if t == nil {
		return ""
	}
	return t.AsTime().Local().Format(time.DateTime) + ", " + reason
}

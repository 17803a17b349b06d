package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/cloudless/cloudless/api"
	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/wait"
	"github.com/cloudless/cloudless/internal/spec"
)

func (c *cli) editCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "edit KIND NAME",
		Short: "Change an object in an editor",
		Long: "Edit opens an object as YAML in the editor that $VISUAL or $EDITOR names, or in vi. When the editor exits, edit\n" +
			"validates the text, shows the plan and applies it. It changes nothing if the text is the same, or if somebody else has\n" +
			"changed the object meanwhile. A refused text is kept, so that you can fix it and apply the file. Edit cluster opens the\n" +
			"configuration of the cluster.",
		Example:           "  cloudless edit workload web\n  cloudless edit cluster\n  EDITOR=nano cloudless edit node box1",
		Args:              kindAnd("NAME", 1, 1),
		ValidArgsFunction: c.completeObjects(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			kind, _ := api.KindOf(args[0])
			if !editable(kind) && kind.Name != "Cluster" {
				return fixed(kind, "edited")
			}
			return c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, args []string) error {
				return c.editObject(ctx, cl, kind, strings.Join(args[1:], ""))
			})(cmd, args)
		},
	}
}

func (c *cli) editObject(ctx context.Context, cl *client.Client, kind api.Kind, name string) error {
	object, err := cl.Objects(kind).Get(ctx, c.Namespace, name)
	if err != nil {
		return err
	}
	if kind.Name == "Cluster" {
		return c.editConfiguration(ctx, cl)
	}
	text, err := spec.EncodeYAML(authored(object))
	if err != nil {
		return err
	}
	return c.edit(ctx, object.GetMetadata().GetName(), "cloudless apply -f", text, func(path string, text []byte) error {
		return c.applyText(ctx, cl, kind, object, path, text)
	})
}

// editConfiguration opens the configuration in force in an editor, and makes the next one of the result.
func (c *cli) editConfiguration(ctx context.Context, cl *client.Client) error {
	current, err := cl.Cluster().GetConfiguration(ctx, &cloudlessv1.GetConfigurationRequest{})
	if err != nil {
		return err
	}
	text, err := spec.EncodeYAML(&cloudlessv1.Configuration{
		ApiVersion: spec.APIVersion, Kind: spec.KindConfiguration,
		Spec: &cloudlessv1.ConfigurationSpec{Number: current.GetSpec().GetNumber(), Cluster: current.GetSpec().GetCluster()},
	})
	if err != nil {
		return err
	}
	return c.edit(ctx, "cluster", "cloudless cluster config set -f", text, func(path string, text []byte) error {
		wanted, err := spec.DecodeConfiguration(path, text)
		if err != nil {
			return err
		}
		return c.applyConfiguration(ctx, cl, current, wanted)
	})
}

// applyConfiguration shows what a configuration would change, and sets it.
func (c *cli) applyConfiguration(ctx context.Context, cl *client.Client, current, wanted *cloudlessv1.Configuration) error {
	planned, err := cl.Cluster().SetConfiguration(ctx, &cloudlessv1.SetConfigurationRequest{Configuration: wanted, DryRun: true})
	if err != nil {
		return err
	}
	if planned.GetSpec().GetNumber() == current.GetSpec().GetNumber() {
		return c.printChange(current, planned, true)
	}
	if c.ForPeople() {
		if err := c.printSettings(planned); err != nil {
			return err
		}
	}
	made, err := cl.Cluster().SetConfiguration(ctx, &cloudlessv1.SetConfigurationRequest{Configuration: wanted})
	switch {
	case err != nil:
		return err
	case !c.ForPeople():
		return c.PrintObject(made)
	}
	return c.Printf("configuration %d is in force\n", made.GetSpec().GetNumber())
}

// edit opens a text in an editor and hands the result to apply. If that fails, it keeps the text and names the command
// that applies it.
func (c *cli) edit(ctx context.Context, name, command string, before []byte, apply func(path string, text []byte) error) error {
	folder, err := os.MkdirTemp("", "cloudless-edit-")
	if err != nil {
		return fmt.Errorf("make a folder for the text: %w", err)
	}
	path := filepath.Join(folder, name+".yaml")
	after, err := c.editText(ctx, path, before)
	if err == nil && bytes.Equal(before, after) {
		c.Note("Nothing was changed.")
		return os.RemoveAll(folder)
	}
	if err == nil {
		err = apply(path, after)
	}
	if err != nil {
		c.Note("The text is kept: fix it and apply it with: %s %s", command, path)
		return err
	}
	return os.RemoveAll(folder)
}

// authored is the part of an object that users write, and the version that the edit is based on.
func authored(object client.Object) client.Object {
	o := proto.Clone(object).(client.Object)
	if n, ok := o.(*cloudlessv1.Node); ok {
		n.Spec = spec.NodeSettings(n.GetSpec())
	}
	m := o.GetMetadata()
	kept := &cloudlessv1.Metadata{
		Name: m.GetName(), Namespace: m.GetNamespace(), Labels: m.GetLabels(), Annotations: m.GetAnnotations(), Version: m.GetVersion(),
	}
	fields := o.ProtoReflect().Descriptor().Fields()
	o.ProtoReflect().Clear(fields.ByName("status"))
	o.ProtoReflect().Set(fields.ByName("metadata"), protoreflect.ValueOfMessage(kept.ProtoReflect()))
	return o
}

func sameAuthored(a, b client.Object) bool {
	a, b = authored(a), authored(b)
	a.GetMetadata().Version = b.GetMetadata().GetVersion()
	return proto.Equal(a, b)
}

// editText opens a text in the user's editor and returns the result.
func (c *cli) editText(ctx context.Context, path string, text []byte) ([]byte, error) {
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return nil, fmt.Errorf("write the text: %w", err)
	}
	editor := []string{"vi"}
	for _, name := range []string{"VISUAL", "EDITOR"} {
		if words := strings.Fields(os.Getenv(name)); len(words) > 0 {
			editor = words
			break
		}
	}
	cmd := exec.CommandContext(ctx, editor[0], append(editor[1:], path)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.Stdin, c.Stdout, c.Stderr
	if err := cmd.Run(); err != nil {
		if errors.Is(err, exec.ErrNotFound) {
			return nil, fmt.Errorf("there is no editor %s: name one in $EDITOR", editor[0])
		}
		return nil, fmt.Errorf("editor %s: %w", editor[0], err)
	}
	return os.ReadFile(path)
}

// applyText validates a text, shows its plan, and applies that plan.
func (c *cli) applyText(ctx context.Context, cl *client.Client, kind api.Kind, before client.Object, path string, text []byte) error {
	documents, err := spec.Decode(path, text)
	if err != nil {
		return err
	}
	if len(documents) != 1 {
		return fmt.Errorf("the text holds %d objects: keep only the one that you are editing", len(documents))
	}
	wanted, name := documents[0].Message.(client.Object), before.GetMetadata().GetName()
	if now, err := cl.Objects(kind).Get(ctx, c.Namespace, name); err == nil && wanted.GetMetadata().GetVersion() == before.GetMetadata().GetVersion() && sameAuthored(before, now) {
		wanted.GetMetadata().Version = now.GetMetadata().GetVersion() // only its status has changed meanwhile
	}
	request := &cloudlessv1.PlanRequest{Objects: []*cloudlessv1.Manifest{spec.ManifestOf(wanted)}}
	plan, err := cl.Plan(ctx, request)
	if err != nil {
		return err
	}
	if c.ForPeople() {
		if err := c.showPlan(plan); err != nil || !changes(plan) {
			return err
		}
	}
	return c.apply(ctx, cl, wait.Flags{}, request, plan.GetFingerprint())
}

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
			"changed the object meanwhile. A refused text is kept, so that you can fix it and run cloudless apply -f.",
		Example:           "  cloudless edit workload web\n  EDITOR=nano cloudless edit namespace shop",
		Args:              kindAnd("NAME", 1, 1),
		ValidArgsFunction: c.completeObjects(1),
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, args []string) error {
			kind, _ := api.KindOf(args[0])
			return c.editObject(ctx, cl, kind, args[1])
		}),
	}
}

func (c *cli) editObject(ctx context.Context, cl *client.Client, kind api.Kind, name string) error {
	object, err := cl.Objects(kind).Get(ctx, c.Namespace, name)
	if err != nil {
		return err
	}
	if spec.ManifestOf(object) == nil {
		return notEditable(kind)
	}
	return c.edit(ctx, cl, object)
}

// edit opens an object in an editor and applies the result.
func (c *cli) edit(ctx context.Context, cl *client.Client, object client.Object) error {
	before, err := spec.EncodeYAML(authored(object))
	if err != nil {
		return err
	}
	folder, err := os.MkdirTemp("", "cloudless-edit-")
	if err != nil {
		return fmt.Errorf("make a folder for the text: %w", err)
	}
	path := filepath.Join(folder, object.GetMetadata().GetName()+".yaml")
	after, err := c.editText(ctx, path, before)
	if err == nil && bytes.Equal(before, after) {
		c.Note("Nothing was changed.")
		return os.RemoveAll(folder)
	}
	if err == nil {
		err = c.applyText(ctx, cl, path, after)
	}
	if err != nil {
		c.Note("The text is kept: fix it and apply it with: cloudless apply -f %s", path)
		return err
	}
	return os.RemoveAll(folder)
}

// authored is the part of an object that users write, and the version that the edit is based on.
func authored(object client.Object) proto.Message {
	o := proto.Clone(object).(client.Object)
	m := o.GetMetadata()
	kept := &cloudlessv1.Metadata{
		Name: m.GetName(), Namespace: m.GetNamespace(), Labels: m.GetLabels(), Annotations: m.GetAnnotations(), Version: m.GetVersion(),
	}
	fields := o.ProtoReflect().Descriptor().Fields()
	o.ProtoReflect().Clear(fields.ByName("status"))
	o.ProtoReflect().Set(fields.ByName("metadata"), protoreflect.ValueOfMessage(kept.ProtoReflect()))
	return o
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
func (c *cli) applyText(ctx context.Context, cl *client.Client, path string, text []byte) error {
	documents, err := spec.Decode(path, text)
	if err != nil {
		return err
	}
	if len(documents) != 1 {
		return fmt.Errorf("the text holds %d objects: keep only the one that you are editing", len(documents))
	}
	request := &cloudlessv1.PlanRequest{Objects: []*cloudlessv1.Manifest{spec.ManifestOf(documents[0].Message)}}
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

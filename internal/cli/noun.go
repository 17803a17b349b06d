package cli

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloudless/cloudless/api"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/terminal"
	"github.com/cloudless/cloudless/internal/spec"
)

// nounCommand groups the commands of a kind: the general ls, get, describe, edit and rm, and the kind's own. An own
// command replaces the general one of the same name, for instance to show other columns.
func (c *cli) nounCommand(word, short, example string, own ...*cobra.Command) *cobra.Command {
	kind, _ := api.KindOf(word)
	group := command.Group(kind.Noun(), short, example, own...)
	group.Aliases = append([]string{kind.Plural}, kind.Aliases...)
	general := []*cobra.Command{c.nounList(kind), c.nounGet(kind), c.nounDescribe(kind)}
	if editable(kind) {
		general = append(general, c.nounEdit(kind))
	}
	if kind.Delete != nil {
		general = append(general, c.nounRemove(kind))
	}
	for _, cmd := range general {
		if !slices.ContainsFunc(own, func(o *cobra.Command) bool { return o.Name() == cmd.Name() }) {
			group.AddCommand(cmd)
		}
	}
	return group
}

func (c *cli) nounList(kind api.Kind) *cobra.Command {
	var s scope
	cmd := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List " + kind.Plural,
		Example: "  cloudless " + kind.Noun() + " ls -l team=web",
		Args:    command.ExactArgs(),
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, _ []string) error {
			return c.listObjects(ctx, cl, kind, s)
		}),
	}
	if kind.Namespaced {
		s.register(cmd)
	} else {
		selectorFlag(cmd, &s.labels, "team=web")
	}
	return cmd
}

func (c *cli) nounGet(kind api.Kind) *cobra.Command {
	return c.nounVerb(kind, "get", "Show one "+kind.Noun(), func(ctx context.Context, cl *client.Client, name string) error {
		return c.getObject(ctx, cl, kind, name)
	})
}

func (c *cli) nounDescribe(kind api.Kind) *cobra.Command {
	return c.nounVerb(kind, "describe", "Show everything about one "+kind.Noun(), c.describerOf(kind))
}

func (c *cli) nounEdit(kind api.Kind) *cobra.Command {
	return c.nounVerb(kind, "edit", "Change one "+kind.Noun()+" in an editor", func(ctx context.Context, cl *client.Client, name string) error {
		return c.editObject(ctx, cl, kind, name)
	})
}

// exampleOf is the name of an object in examples.
func exampleOf(kind api.Kind) string {
	switch kind.Name {
	case "Service":
		return "api"
	case "Policy":
		return "registries"
	case "Route":
		return "shop-example-org"
	case "Certificate":
		return "shop"
	case "Secret":
		return "db-password"
	case "Bucket":
		return "photos"
	case "Node":
		return "box1"
	case "Workload":
		return "web"
	case "Namespace":
		return "shop"
	}
	return "NAME"
}

func (c *cli) nounVerb(kind api.Kind, verb, short string, run describer) *cobra.Command {
	return &cobra.Command{
		Use: verb + " NAME", Short: short, Example: "  cloudless " + kind.Noun() + " " + verb + " " + exampleOf(kind),
		Args: command.ExactArgs("NAME"),
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, args []string) error {
			return run(ctx, cl, args[0])
		}),
	}
}

func (c *cli) nounRemove(kind api.Kind) *cobra.Command {
	noun := kind.Noun()
	return &cobra.Command{
		Use: "rm NAME...", Aliases: []string{"remove", "delete"}, Short: "Remove " + kind.Plural,
		Example: "  cloudless " + noun + " rm " + exampleOf(kind),
		Args:    command.AtLeastOne("NAME"),
		RunE: c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, args []string) error {
			return c.removeObjects(ctx, cl, kind, args)
		}),
	}
}

// describeObject shows an object of a kind that has no description of its own, and the events about it.
func (c *cli) describeObject(kind api.Kind) describer {
	return func(ctx context.Context, cl *client.Client, name string) error {
		object, err := cl.Objects(kind).Get(ctx, c.Namespace, name)
		if err != nil {
			return err
		}
		if !c.ForPeople() {
			return c.PrintObject(object)
		}
		m := object.GetMetadata()
		f := terminal.NewFacts(c.Stdout)
		f.Add("Name", m.GetName())
		f.Add("Namespace", m.GetNamespace())
		f.Add("Uid", m.GetUid())
		f.Add("Labels", terminal.Pairs(m.GetLabels()))
		f.Add("Annotations", terminal.Pairs(m.GetAnnotations()))
		f.Add("Age", command.Age(m.GetCreateTime(), time.Now()))
		if err := f.Flush(); err != nil {
			return err
		}
		for _, part := range []string{"spec", "status"} {
			if err := c.printPart(object, part); err != nil {
				return err
			}
		}
		return c.eventsAbout(ctx, cl, kind.Name, name)
	}
}

// printPart shows the spec or the status of an object, if it has one.
func (c *cli) printPart(object client.Object, name string) error {
	field := object.ProtoReflect().Descriptor().Fields().ByTextName(name)
	if field == nil || !object.ProtoReflect().Has(field) {
		return nil
	}
	text, err := spec.EncodeYAML(object.ProtoReflect().Get(field).Message().Interface())
	if err != nil {
		return err
	}
	var indented bytes.Buffer
	command.Indent(&indented, "  ", text)
	return c.Printf("\n%s:\n%s", strings.ToUpper(name[:1])+name[1:], indented.String())
}

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/spec"
)

func (c *cli) applyCommand() *cobra.Command {
	var files []string
	var w waiting
	cmd := &cobra.Command{
		Use:   "apply -f FILE|-",
		Short: "Bring workloads to what a file says",
		Long: "Apply makes the workloads of a file, or changes those that are there to what the file says.\n" +
			"A file is YAML or JSON and may hold several documents; - is standard input.",
		Example: "  cloudless apply -f app.yaml\n  cat *.yaml | cloudless apply -f - --wait=false",
		Args:    names(),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(files) == 0 {
				return usage(cmd, "the file is missing: %s", cmd.UseLine())
			}
			workloads, err := c.readFiles(cmd, files)
			if err != nil {
				return err
			}
			return c.withClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, _ []string) error {
				return c.apply(ctx, cl, w, workloads)
			})(cmd, args)
		},
	}
	cmd.Flags().StringArrayVarP(&files, "file", "f", nil, "`file` with workloads, - for standard input; may be repeated")
	w.register(cmd, "they run")
	return cmd
}

func (c *cli) apply(ctx context.Context, cl *client.Client, w waiting, workloads []*cloudlessv1.Workload) error {
	var applied []*cloudlessv1.Workload
	for _, workload := range workloads {
		answer, err := cl.Workloads().ApplyWorkload(ctx, &cloudlessv1.ApplyWorkloadRequest{Workload: workload})
		if err != nil {
			return fmt.Errorf("apply workload %s: %w", workload.GetMetadata().GetName(), err)
		}
		applied = append(applied, answer.GetWorkload())
		if c.forPeople() {
			if err := c.printf("workload %s %s\n", workload.GetMetadata().GetName(), answer.GetResult()); err != nil {
				return err
			}
		}
	}
	if w.on {
		var err error
		if applied, err = c.awaitSettled(ctx, cl, w, applied...); err != nil {
			return err
		}
	}
	switch {
	case !c.forPeople():
		return printList(c, applied)
	case w.on:
		for _, workload := range applied {
			if err := c.printf("%s: %s\n", workload.GetMetadata().GetName(), standing(workload)); err != nil {
				return err
			}
		}
	}
	return nil
}

// readFiles reads and checks all documents before any of them is applied.
func (c *cli) readFiles(cmd *cobra.Command, files []string) ([]*cloudlessv1.Workload, error) {
	var workloads []*cloudlessv1.Workload
	for _, file := range files {
		data, err := c.readFile(file)
		if err != nil {
			return nil, err
		}
		documents, err := spec.Decode(file, data)
		if err != nil {
			return nil, err
		}
		for _, document := range documents {
			workload, ok := document.Message.(*cloudlessv1.Workload)
			if !ok {
				return nil, fmt.Errorf("%s:%d: a %s cannot be applied: only a Workload can", file, document.Line, document.Kind)
			}
			given := workload.GetMetadata().GetNamespace()
			if given != "" && given != c.namespace && cmd.Flags().Changed("namespace") {
				return nil, fmt.Errorf("%s:%d: workload %s is of namespace %s, but --namespace says %s: leave one of them out",
					file, document.Line, workload.GetMetadata().GetName(), given, c.namespace)
			}
			if given == "" {
				workload.Metadata.Namespace = c.namespace
			}
			workloads = append(workloads, workload)
		}
	}
	if len(workloads) == 0 {
		return nil, errors.New("there is nothing to apply: the input holds no document")
	}
	return workloads, nil
}

func (c *cli) readFile(file string) ([]byte, error) {
	from := c.Stdin
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, fmt.Errorf("read the workloads: %w", err)
		}
		defer f.Close()
		from = f
	}
	// One byte more than allowed lets the decoder see that it is too much.
	data, err := io.ReadAll(io.LimitReader(from, spec.MaxFileSize+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	return data, nil
}

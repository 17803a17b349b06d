// Command gen compiles the .proto files under api and writes the Go code, the
// HTTP gateway and the OpenAPI document under api/gen, and the code that stores
// the kinds of state.proto into internal/state.
//
// It needs neither protoc nor copies of foreign .proto files: imports such as
// google/api/annotations.proto come from the descriptors that are linked into
// their Go packages.
//
//	go run ./gen -root ..
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"

	_ "buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	_ "google.golang.org/protobuf/types/known/durationpb"
	_ "google.golang.org/protobuf/types/known/timestamppb"
)

// plugin is one code generator and the parameter it is called with.
type plugin struct {
	name, parameter string
	// public plugins see only the public API.
	public bool
	// grpc plugins make code that needs gRPC. Small programs use the messages without it.
	grpc bool
}

// withoutGRPC leaves a file out of programs that are built with the tag no_grpc.
const withoutGRPC = "//go:build !no_grpc\n\n"

// markGRPC puts that behind the comment that says that the code is generated.
func markGRPC(code string) string {
	return strings.Replace(code, "\n\n", "\n\n"+withoutGRPC, 1)
}

var plugins = []plugin{
	{name: "protoc-gen-go", parameter: "paths=source_relative"},
	{name: "protoc-gen-go-grpc", parameter: "paths=source_relative", grpc: true},
	{name: "protoc-gen-go-vtproto", parameter: "paths=source_relative,features=marshal+unmarshal+size"},
	{name: "protoc-gen-grpc-gateway", parameter: "paths=source_relative", public: true, grpc: true},
	{name: "protoc-gen-openapiv2", parameter: "allow_merge=true,merge_file_name=cloudless,json_names_for_fields=true,simple_operation_ids=true,output_format=json", public: true},
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("gen: ")
	root := flag.String("root", "..", "folder of the repository")
	flag.Parse()
	if err := run(context.Background(), *root); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, root string) error {
	source, target := filepath.Join(root, "api"), filepath.Join(root, "api", "gen")
	names, err := protoFiles(source)
	if err != nil {
		return err
	}
	files, err := compile(ctx, source, names)
	if err != nil {
		return err
	}
	if err := writeKinds(files, filepath.Join(root, "internal", "state", "kinds_gen.go")); err != nil {
		return err
	}
	set := withImports(files)
	if err := os.RemoveAll(target); err != nil {
		return fmt.Errorf("empty %s: %w", target, err)
	}
	for _, p := range plugins {
		if err := generate(ctx, p, set, names, target); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	if err := writeGateway(set, target); err != nil {
		return err
	}
	return completeOpenAPI(filepath.Join(target, "cloudless.swagger.json"), filepath.Join(source, "openapi.json"))
}

func protoFiles(root string) ([]string, error) {
	var names []string
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".proto" {
			return err
		}
		name, err := filepath.Rel(root, path)
		names = append(names, filepath.ToSlash(name))
		return err
	})
	slices.Sort(names)
	return names, err
}

func compile(ctx context.Context, root string, names []string) ([]protoreflect.FileDescriptor, error) {
	linked := protocompile.ResolverFunc(func(path string) (protocompile.SearchResult, error) {
		file, err := protoregistry.GlobalFiles.FindFileByPath(path)
		if err != nil {
			return protocompile.SearchResult{}, err
		}
		return protocompile.SearchResult{Proto: protodesc.ToFileDescriptorProto(file)}, nil
	})
	compiler := protocompile.Compiler{
		Resolver: protocompile.CompositeResolver{
			&protocompile.SourceResolver{ImportPaths: []string{root}},
			linked,
		},
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	files, err := compiler.Compile(ctx, names...)
	if err != nil {
		return nil, err
	}
	descriptors := make([]protoreflect.FileDescriptor, len(files))
	for i, file := range files {
		descriptors[i] = file
	}
	return descriptors, nil
}

// withImports returns the files and everything that they import, imports first.
func withImports(files []protoreflect.FileDescriptor) (set []*descriptorpb.FileDescriptorProto) {
	seen := map[string]bool{}
	var add func(protoreflect.FileDescriptor)
	add = func(file protoreflect.FileDescriptor) {
		if seen[file.Path()] {
			return
		}
		seen[file.Path()] = true
		for i := range file.Imports().Len() {
			add(file.Imports().Get(i).FileDescriptor)
		}
		set = append(set, protodesc.ToFileDescriptorProto(file))
	}
	for _, file := range files {
		add(file)
	}
	return set
}

func generate(ctx context.Context, p plugin, set []*descriptorpb.FileDescriptorProto, names []string, target string) error {
	if p.public {
		names = slices.DeleteFunc(slices.Clone(names), func(name string) bool {
			return strings.HasPrefix(name, "cloudless/state/")
		})
	}
	request, err := proto.Marshal(&pluginpb.CodeGeneratorRequest{
		FileToGenerate: names,
		Parameter:      &p.parameter,
		ProtoFile:      set,
	})
	if err != nil {
		return err
	}
	var stdout bytes.Buffer
	cmd := exec.CommandContext(ctx, "go", "tool", p.name)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(request), &stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return err
	}
	var response pluginpb.CodeGeneratorResponse
	if err := proto.Unmarshal(stdout.Bytes(), &response); err != nil {
		return err
	}
	if response.Error != nil {
		return errors.New(response.GetError())
	}
	for _, file := range response.File {
		path := filepath.Join(target, filepath.FromSlash(file.GetName()))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		content := file.GetContent()
		if p.grpc {
			content = markGRPC(content)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

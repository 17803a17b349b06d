package policy

import (
	"fmt"
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/ext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/cloudless/cloudless/api"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/image"
	"github.com/cloudless/cloudless/internal/spec"
)

// The variables of expressions.
const (
	varObject = "object"
	varBefore = "before"
	varVerb   = "verb"
	varCaller = "caller"
	varNow    = "now"
	varNode   = "node"
)

// What a rule is about.
const (
	aboutObject = "object"
	aboutNode   = "node"
)

const (
	// maxExpression is the length of an expression in characters; the API has the same limit.
	maxExpression = 8192
	// maxDepth is how deep an expression may be nested.
	maxDepth = 64
)

// subject is what an expression is about: the kind of the object, and whether it judges objects or nodes.
type subject struct {
	kind  string // in lower case
	about string
}

var environments sync.Map // of func() (*cel.Env, error), by subject

// environment returns the variables and functions of expressions.
func environment(of subject) (*cel.Env, error) {
	once, _ := environments.LoadOrStore(of, sync.OnceValues(func() (*cel.Env, error) { return newEnvironment(of) }))
	return once.(func() (*cel.Env, error))()
}

// emptyObject is an object of a kind without content.
func emptyObject(kind string) (proto.Message, error) {
	declared, known := api.KindOf(kind)
	if !known {
		return nil, fmt.Errorf("there is no kind %s", kind)
	}
	found, err := protoregistry.GlobalTypes.FindMessageByName(declared.Message.FullName())
	if err != nil {
		return nil, err
	}
	return found.New().Interface(), nil
}

func newEnvironment(of subject) (*cel.Env, error) {
	object, err := emptyObject(of.kind)
	if err != nil {
		return nil, err
	}
	objectType := cel.ObjectType(string(object.ProtoReflect().Descriptor().FullName()))
	options := []cel.EnvOption{
		cel.Types(object, &v1.Node{}, &v1.PolicyCaller{}),
		cel.JSONFieldNames(true),
		cel.OptionalTypes(),
		cel.ParserExpressionSizeLimit(maxExpression),
		cel.ParserRecursionLimit(maxDepth),
		cel.ASTValidators(cel.ValidateRegexLiterals(), cel.ValidateDurationLiterals(), cel.ValidateTimestampLiterals()),
		// Version 0 has no format, which can write texts of any length.
		ext.Strings(ext.StringsVersion(0)),
		ext.Sets(),
		cel.Variable(varObject, objectType),
		text("registry", func(n image.Name) string { return n.Registry }),
		text("repository", func(n image.Name) string { return n.Repository }),
		text("tag", func(n image.Name) string { return n.Tag }),
		text("digest", func(n image.Name) string { return n.Digest }),
		amount("cpu", spec.ParseCPU),
		amount("memory", spec.ParseBytes),
	}
	if of.about == aboutNode {
		options = append(options, cel.Variable(varNode, cel.ObjectType("cloudless.v1.Node")))
	} else {
		options = append(options,
			cel.Variable(varBefore, objectType),
			cel.Variable(varVerb, cel.StringType),
			cel.Variable(varCaller, cel.ObjectType("cloudless.v1.PolicyCaller")),
			cel.Variable(varNow, cel.TimestampType),
		)
	}
	return cel.NewEnv(options...)
}

// text is a function that returns a part of an image's name.
func text(name string, part func(image.Name) string) cel.EnvOption {
	return cel.Function(name, cel.Overload(name+"_string", []*cel.Type{cel.StringType}, cel.StringType, cel.UnaryBinding(func(v ref.Val) ref.Val {
		n, err := image.ParseName(string(v.(types.String)))
		if err != nil {
			return types.WrapErr(err)
		}
		return types.String(part(n))
	})))
}

// amount is a function that reads a quantity. An empty one is 0, so that what is not given compares, too.
func amount(name string, parse func(string) (int64, error)) cel.EnvOption {
	return cel.Function(name, cel.Overload(name+"_string", []*cel.Type{cel.StringType}, cel.IntType, cel.UnaryBinding(func(v ref.Val) ref.Val {
		given := string(v.(types.String))
		if given == "" {
			return types.IntZero
		}
		n, err := parse(given)
		if err != nil {
			return types.NewErr("%q: %v", given, err)
		}
		return types.Int(n)
	})))
}

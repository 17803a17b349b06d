package client

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/cloudless/cloudless/api"
	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// Objects calls the standard methods of any kind. Code that knows the kind calls its service instead.
type Objects struct {
	client *Client
	kind   api.Kind
}

// Object is an object of any kind.
type Object interface {
	proto.Message
	GetMetadata() *cloudlessv1.Metadata
}

// Objects returns the objects of a kind.
func (c *Client) Objects(kind api.Kind) *Objects { return &Objects{client: c, kind: kind} }

// Get returns one object. It lists the objects of kinds that have no method to get one, such as endpoints.
func (o *Objects) Get(ctx context.Context, namespace, name string) (Object, error) {
	if o.kind.Get == nil {
		return o.find(ctx, namespace, name)
	}
	answer, err := o.call(ctx, o.kind.Get, map[string]string{"namespace": namespace, "name": name}, nil)
	if err != nil {
		return nil, err
	}
	return answer.(Object), nil
}

func (o *Objects) find(ctx context.Context, namespace, name string) (Object, error) {
	all, err := o.List(ctx, namespace, "")
	if err != nil {
		return nil, err
	}
	for _, object := range all {
		if object.GetMetadata().GetName() == name {
			return object, nil
		}
	}
	return nil, fmt.Errorf("%s %s does not exist", o.kind.Noun(), name)
}

// List returns all objects of a namespace with some labels. An empty namespace stands for all.
func (o *Objects) List(ctx context.Context, namespace, labels string) ([]Object, error) {
	if o.kind.List == nil {
		return nil, fmt.Errorf("the cluster keeps no list of %s", o.kind.Plural)
	}
	return AllPages(func(page *cloudlessv1.Page) ([]Object, string, error) {
		answer, err := o.call(ctx, o.kind.List, map[string]string{"namespace": namespace, "labels": labels}, page)
		if err != nil {
			return nil, "", err
		}
		m := answer.ProtoReflect()
		items := m.Get(m.Descriptor().Fields().ByName("items")).List()
		all := make([]Object, items.Len())
		for i := range all {
			all[i] = items.Get(i).Message().Interface().(Object)
		}
		return all, m.Get(m.Descriptor().Fields().ByName("next")).String(), nil
	})
}

// Delete removes an object. It returns what the cluster answers, which for some kinds is empty.
func (o *Objects) Delete(ctx context.Context, namespace, name string) (proto.Message, error) {
	if o.kind.Delete == nil {
		return nil, fmt.Errorf("%s cannot be removed: the cluster has no call for that", o.kind.OneNoun())
	}
	return o.call(ctx, o.kind.Delete, map[string]string{"namespace": namespace, "name": name}, nil)
}

// call fills in the fields that the request has, and refuses those that it lacks.
func (o *Objects) call(ctx context.Context, method *api.Method, words map[string]string, page *cloudlessv1.Page) (proto.Message, error) {
	request, err := newMessage(method.Descriptor.Input())
	if err != nil {
		return nil, err
	}
	for field, word := range words {
		if word == "" || field == "namespace" && !o.kind.Namespaced {
			continue
		}
		if !setWord(request.ProtoReflect(), protoreflect.Name(field), word) {
			return nil, fmt.Errorf("%s cannot be chosen by %s", o.kind.Plural, field)
		}
	}
	if field := method.Descriptor.Input().Fields().ByName("page"); field != nil && page != nil {
		request.ProtoReflect().Set(field, protoreflect.ValueOfMessage(page.ProtoReflect()))
	}
	answer, err := newMessage(method.Descriptor.Output())
	if err != nil {
		return nil, err
	}
	return answer, o.client.conn.Invoke(ctx, method.Name, request, answer)
}

// setWord sets a field of a request, or the one of that name in its selection.
func setWord(request protoreflect.Message, name protoreflect.Name, word string) bool {
	fields := request.Descriptor().Fields()
	if field := fields.ByName(name); field != nil && field.Kind() == protoreflect.StringKind {
		request.Set(field, protoreflect.ValueOfString(word))
		return true
	}
	selection := fields.ByName("selection")
	return selection != nil && setWord(request.Mutable(selection).Message(), name, word)
}

func newMessage(of protoreflect.MessageDescriptor) (proto.Message, error) {
	kind, err := protoregistry.GlobalTypes.FindMessageByName(of.FullName())
	if err != nil {
		return nil, fmt.Errorf("find message %s: %w", of.FullName(), err)
	}
	return kind.New().Interface(), nil
}

package client

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"unicode"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// UnreachableError says that no server of the cluster could be reached, or that the answer did not come from one of its
// servers.
type UnreachableError struct {
	Addresses []string
	Err       error
}

func (e *UnreachableError) Error() string {
	at := strings.Join(e.Addresses, ", ")
	var handshake *handshakeError
	switch {
	case errors.As(e.Err, &handshake) && unknownAuthority(handshake.err):
		return fmt.Sprintf("what answers at %s is not a server of the cluster that the context names, but of another one: "+
			"if it has replaced its certificate authority months ago, log in again with: cloudless login; "+
			"if the cluster was created again, start it with cloudless up, or choose another context", handshake.address)
	case errors.As(e.Err, &handshake):
		return fmt.Sprintf("what answers at %s is not a server of the cluster that the context names: %v: "+
			"if the cluster was created again, start it with cloudless up, or choose another context", handshake.address, handshake.err)
	case errors.Is(e.Err, syscall.ECONNREFUSED) && len(e.Addresses) > 1:
		return fmt.Sprintf("cannot reach the cluster at %s: start its servers again, each with: cloudless server; if they have moved, name one of them with --server ADDRESS", at)
	case errors.Is(e.Err, syscall.ECONNREFUSED):
		return fmt.Sprintf("cannot reach the cluster at %s: is it running? start it with: cloudless up", at)
	case errors.Is(e.Err, context.DeadlineExceeded), errors.Is(e.Err, os.ErrDeadlineExceeded),
		errors.Is(e.Err, syscall.EHOSTUNREACH), errors.Is(e.Err, syscall.ENETUNREACH):
		return fmt.Sprintf("cannot reach the cluster at %s: it does not answer: check the address and the network; if its servers have moved, name one of them with --server ADDRESS", at)
	}
	return fmt.Sprintf("cannot reach the cluster at %s: %v", at, e.Err)
}

func (e *UnreachableError) Unwrap() error { return e.Err }

// GRPCStatus gives it the status code that gRPC itself would use.
func (e *UnreachableError) GRPCStatus() *status.Status {
	return status.New(codes.Unavailable, e.Error())
}

// handshakeError says that the other end could not prove to be a server of the cluster.
type handshakeError struct {
	address string
	err     error
}

func (e *handshakeError) Error() string {
	return fmt.Sprintf("handshake with %s: %v", e.address, e.err)
}

func (e *handshakeError) Unwrap() error { return e.err }

func unknownAuthority(err error) bool {
	_, unknown := errors.AsType[x509.UnknownAuthorityError](err)
	return unknown
}

// handshakeFailed distinguishes a failed proof from a broken connection.
func handshakeFailed(address string, err error) error {
	for _, broken := range []error{io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, net.ErrClosed, os.ErrDeadlineExceeded, context.DeadlineExceeded, context.Canceled} {
		if errors.Is(err, broken) {
			return fmt.Errorf("the connection to %s broke while it was made: %w", address, err)
		}
	}
	return &handshakeError{address: address, err: err}
}

// callError is the error of a call in words for people. status.Code and status.Convert see through it.
type callError struct {
	message string
	status  *status.Status
}

func (e *callError) Error() string { return e.message }

func (e *callError) GRPCStatus() *status.Status { return e.status }

// Is matches the context's errors, which gRPC turns into codes.
func (e *callError) Is(target error) bool {
	switch target {
	case context.Canceled:
		return e.status.Code() == codes.Canceled
	case context.DeadlineExceeded:
		return e.status.Code() == codes.DeadlineExceeded
	}
	return false
}

// callErr turns a gRPC error into a sentence.
func (l *link) callErr(err error) error {
	if err == nil || err == io.EOF { //nolint:errorlint // gRPC promises the plain value
		return err
	}
	s := status.Convert(err)
	// A server that finds no leader has answered, whatever happened to later connections.
	if s.Code() == codes.Unavailable && l.down() && !hasReason(err, reasonNoLeader) {
		return l.unreachable(err)
	}
	return &callError{message: sentence(s, strings.Join(l.all(), ", ")), status: s}
}

func sentence(s *status.Status, at string) string {
	message := strings.TrimSpace(s.Message())
	switch s.Code() {
	case codes.Canceled:
		return "interrupted"
	case codes.DeadlineExceeded:
		return fmt.Sprintf("the cluster at %s did not answer in time", at)
	case codes.Unavailable:
		return fmt.Sprintf("the cluster at %s cannot answer now: %s", at, message)
	case codes.Unimplemented:
		return fmt.Sprintf("the cluster at %s does not know this call: it may run an older version: %s", at, message)
	}
	if message == "" {
		return fmt.Sprintf("the cluster at %s refused the call (%s)", at, s.Code())
	}
	return message
}

// Message is the error in one line for people: no codes, no line breaks, no control characters.
func Message(err error) string {
	if err == nil {
		return ""
	}
	text := err.Error()
	if errors.Is(err, context.Canceled) {
		text = "interrupted"
	} else if _, own := errors.AsType[*callError](err); !own {
		if s, ok := status.FromError(err); ok && s.Code() != codes.OK && strings.HasPrefix(text, "rpc error:") {
			text = s.Message()
		}
	}
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.Join(strings.FieldsFunc(line, blank), " "); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "; ")
}

func blank(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }

// interceptor puts errors into words, adds idempotency keys, and learns the servers' addresses from answers.
type interceptor struct {
	link     *link
	shortcut *shortcut
}

func (i interceptor) unary(ctx context.Context, method string, req, reply any, usual *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	req = withKey(req)
	left, err := i.once(ctx, method, req, reply, usual, invoke, opts...)
	// Nothing was done, or a key keeps it from being done twice, and another server may know the leader. Several may be
	// cut off together, and one may be known by two addresses.
	for asked := 1; left && ctx.Err() == nil && asked < max(2, len(i.link.all())); asked++ {
		earlier := err
		left, err = i.once(ctx, method, req, reply, usual, invoke, opts...)
		if code := status.Code(err); Uncertain(earlier) && (code == codes.Unavailable || code == codes.ResourceExhausted) {
			err = earlier // that the later attempt did nothing says nothing about the earlier one
		}
	}
	return i.link.callErr(err)
}

// once makes a call, and reports whether it left a server for another one because the first could do nothing.
func (i interceptor) once(ctx context.Context, method string, req, reply any, usual *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) (left bool, err error) {
	by := i.shortcut.choose(ctx, method, usual)
	var header metadata.MD
	ctx = metadata.AppendToOutgoingContext(ctx, headerKnown, i.link.known())
	err = invoke(ctx, method, req, reply, by, append(slices.Clip(opts), grpc.Header(&header))...)
	i.shortcut.learnFrom(method, by, header, err, i.link)
	i.link.learnFrom(header)
	return hasReason(err, reasonNoLeader) && (by != usual || i.link.moveOn()), err // a broken shortcut is closed by then
}

func (i interceptor) stream(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	stream, err := open(metadata.AppendToOutgoingContext(ctx, headerKnown, i.link.known()), desc, conn, method, opts...)
	if err != nil {
		return nil, i.link.callErr(err)
	}
	return &errorStream{ClientStream: stream, link: i.link}, nil
}

type errorStream struct {
	grpc.ClientStream
	link       *link
	headerRead bool // whether the header with the servers was read
}

func (s *errorStream) SendMsg(m any) error { return s.link.callErr(s.ClientStream.SendMsg(m)) }
func (s *errorStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if !s.headerRead { // the header is there by now, if there is one
		s.headerRead = true
		if header, err := s.Header(); err == nil {
			s.link.learnFrom(header)
		}
	}
	if hasReason(err, reasonNoLeader) {
		s.link.moveOn() // for the next attempt
	}
	return s.link.callErr(err)
}

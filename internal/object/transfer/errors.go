package transfer

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// What a node says of a chunk.
var (
	ErrMissing = errors.New("the node does not have the chunk")
	ErrDamaged = errors.New("the chunk is damaged")
	ErrFull    = errors.New("the disk is full")
)

// problem is one of them, as both ends write it: by code at the end of a call, and by word in the answer for one chunk.
type problem struct {
	err  error
	code codes.Code
	word string
}

var problems = []problem{
	{ErrMissing, codes.NotFound, "missing"},
	{ErrDamaged, codes.DataLoss, "damaged"},
	{ErrFull, codes.ResourceExhausted, "full"},
}

// Failed is the word for a failure that is none of the errors above.
const Failed = "failed"

// Status is how a call ends with an error.
func Status(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	for _, p := range problems {
		if errors.Is(err, p.err) {
			return status.Error(p.code, err.Error())
		}
	}
	if s := status.FromContextError(err); s.Code() != codes.Unknown {
		return s.Err()
	}
	return status.Error(codes.Internal, err.Error())
}

// FromStatus is the error of a call at the caller: one of those above if the node said so, or that of the context that
// has ended the call.
func FromStatus(err error) error {
	switch status.Code(err) {
	case codes.Canceled:
		return &told{context.Canceled, ""}
	case codes.DeadlineExceeded:
		return &told{context.DeadlineExceeded, ""}
	}
	for _, p := range problems {
		if err != nil && status.Code(err) == p.code {
			return &told{p.err, status.Convert(err).Message()}
		}
	}
	return err
}

// Word is the word and the reason for the error of one chunk. Both are empty if there is none.
func Word(err error) (word, reason string) {
	if err == nil {
		return "", ""
	}
	for _, p := range problems {
		if errors.Is(err, p.err) {
			return p.word, err.Error()
		}
	}
	return Failed, err.Error()
}

// FromWord is the error that a word and its reason stand for.
func FromWord(word, reason string) error {
	if word == "" {
		return nil
	}
	for _, p := range problems {
		if p.word == word {
			return &told{p.err, reason}
		}
	}
	return errors.New(reason)
}

// told is an error in the words of the other end.
type told struct {
	is  error
	why string
}

// Error implements error.
func (t *told) Error() string {
	if t.why == "" {
		return t.is.Error()
	}
	return t.why
}

// Unwrap makes errors.Is find what it is.
func (t *told) Unwrap() error { return t.is }

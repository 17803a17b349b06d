package main

import (
	"context"

	"github.com/cloudless/cloudless/client"
)

// stage is a cloud with an image to run on it, and a connected client.
type stage struct {
	*cloud
	api   *client.Client
	image string
}

// newStage creates all of it. Its close leaves nothing behind.
func (l *lab) newStage(ctx context.Context, name string) (_ *stage, err error) {
	c, err := l.newCloud(ctx, name)
	if err != nil {
		return nil, err
	}
	s := &stage{cloud: c}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.api, err = c.dial(ctx); err != nil {
		return nil, err
	}
	s.image, err = c.push(ctx, s.api)
	return s, err
}

func (s *stage) close() {
	if s.api != nil {
		_ = s.api.Close()
	}
	s.cloud.close()
}

package client

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// The values of Context.From.
const (
	// FromUp is the context that cloudless up writes and keeps fresh.
	FromUp = "up"
	// FromOidc is one of a user who has logged in at the cluster's OpenID provider.
	FromOidc = "oidc"
)

// TakeToken puts a new token into the context.
func (c *Context) TakeToken(made *cloudlessv1.CreateTokenResponse, now time.Time) {
	c.Token = made.GetSecret()
	about := made.GetToken().GetSpec()
	expires := about.GetExpireTime().AsTime()
	c.Renews = about.GetRenew() != nil && (about.GetRenewUntil() == nil || about.GetRenewUntil().AsTime().After(expires))
	// By the clock of this machine: that of the servers may be another one.
	written := made.GetToken().GetMetadata().GetUpdateTime()
	if written == nil {
		written = made.GetToken().GetMetadata().GetCreateTime()
	}
	c.Since = now.UTC().Truncate(time.Second)
	c.Until = c.Since.Add(expires.Sub(written.AsTime()).Truncate(time.Second))
}

// RenewAt is when the token is to be renewed: when two thirds of its lifetime are over. It is zero if it is not renewed.
func (c Context) RenewAt() time.Time {
	if !c.Renews || !c.Until.After(c.Since) {
		return time.Time{}
	}
	return c.Since.Add(c.Until.Sub(c.Since) / 3 * 2)
}

// Due reports whether the token is to be renewed now.
func (c Context) Due(now time.Time) bool {
	at := c.RenewAt()
	return !at.IsZero() && !now.Before(at)
}

// renewPatience is how long a renewal may take, because other commands wait for it.
const renewPatience = 10 * time.Second

// Renew renews the token of a context in a configuration file if that is due, and returns the context as it is then. The
// file is locked meanwhile: of several commands at a time, one renews the token, and the others use what it wrote. The old
// token stays valid for a while, so a command that has read it is not disturbed.
func Renew(ctx context.Context, path, name string, options ...Option) (Context, error) {
	ctx, cancel := context.WithTimeout(ctx, renewPatience)
	defer cancel()
	var now Context
	err := updateConfig(path, func(config *Config) error {
		var err error
		if now, err = config.Context(name); err != nil {
			return err
		}
		if !now.Due(time.Now()) {
			return errOnlyChecked // another command was faster
		}
		made, err := renewed(ctx, now, options)
		if err != nil {
			return err
		}
		now.TakeToken(made, time.Now())
		config.Set(now)
		return nil
	})
	if err != nil && !errors.Is(err, errOnlyChecked) {
		return Context{}, fmt.Errorf("renew the token of context %s: %w", name, err)
	}
	return now, nil
}

func renewed(ctx context.Context, where Context, options []Option) (_ *cloudlessv1.CreateTokenResponse, err error) {
	cl, err := Dial(ctx, where, options...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, cl.Close()) }()
	return cl.Logins().RenewToken(ctx, &cloudlessv1.RenewTokenRequest{})
}

// lookPause is the shortest time between two looks at the file.
const lookPause = time.Second

// TokenOf returns a function for [WithTokenOf], which gives the token of a context as the configuration file has it now.
func TokenOf(path string, where Context) func() string {
	f := &fileToken{path: path, where: where, looked: time.Now()}
	return f.current
}

type fileToken struct {
	path string

	mu      sync.Mutex
	where   Context
	looked  time.Time
	changed time.Time // of the file, when it was read
}

func (f *fileToken) current() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.looked) < lookPause {
		return f.where.Token
	}
	f.looked = time.Now()
	info, err := os.Stat(f.path)
	if err != nil || info.ModTime().Equal(f.changed) {
		return f.where.Token
	}
	f.changed = info.ModTime()
	if config, err := LoadConfig(f.path); err == nil {
		if now, err := config.Context(f.where.Name); err == nil && now.Cluster == f.where.Cluster && now.Token != "" {
			f.where = now
		}
	}
	return f.where.Token
}

package client

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/lockedfile"
	"go.yaml.in/yaml/v3"

	"github.com/cloudless/cloudless/internal/atomicfile"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/suggest"
)

// ConfigEnv names the environment variable that holds the path of the configuration file.
const ConfigEnv = "CLOUDLESS_CONFIG"

// Config is the client configuration: the clusters that this user knows.
type Config struct {
	// Current is the name of the context that is used by default.
	Current  string    `yaml:"current,omitempty"`
	Contexts []Context `yaml:"contexts,omitempty"`
}

// Context is one cluster with its credentials.
type Context struct {
	Name string `yaml:"name"`
	// Addresses of the servers, host:port each; the first that answers is used.
	Addresses []string `yaml:"addresses"`
	// Cluster is the cluster's id, which is the trust domain of its SPIFFE ids.
	Cluster string `yaml:"cluster"`
	// CA is the certificates of the cluster's authorities, PEM. There is one, except while the cluster replaces it.
	CA string `yaml:"ca"`
	// Token is the API token. Printing a Context omits it.
	Token string `yaml:"token"`
	// From says where the token is from, if it was not given to the user: FromUp or FromOidc.
	From string `yaml:"from,omitempty"`
	// Since and Until are the lifetime of the token by the clock of this machine, if the client knows it.
	Since time.Time `yaml:"since,omitempty"`
	Until time.Time `yaml:"until,omitempty"`
	// Renews is set if the client renews the token.
	Renews bool `yaml:"renews,omitempty"`
}

// String is the context without its token.
func (c Context) String() string {
	return fmt.Sprintf("context %s (cluster %s at %s)", c.Name, c.Cluster, strings.Join(c.Addresses, ", "))
}

// GoString is the context without its token.
func (c Context) GoString() string { return c.String() }

// LogValue is the context without its token.
func (c Context) LogValue() slog.Value { return slog.StringValue(c.String()) }

// Validate says why the context cannot be used.
func (c Context) Validate() error {
	_, err := c.trust()
	return err
}

func (c Context) trust() (*identity.Trust, error) {
	// The token becomes a header line.
	if c.Token == "" || strings.ContainsFunc(c.Token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, fmt.Errorf("context %q cannot be used: it has no token, or one with characters that no token has", c.Name)
	}
	return c.trustOnly()
}

// trustOnly does not look at the token.
func (c Context) trustOnly() (*identity.Trust, error) {
	refuse := func(err error) error { return fmt.Errorf("context %q cannot be used: %w", c.Name, err) }
	if c.Name == "" {
		return nil, errors.New("a context has no name: give it one")
	}
	if len(c.Addresses) == 0 {
		return nil, refuse(errors.New("it has no addresses"))
	}
	for _, address := range c.Addresses {
		if _, port, err := net.SplitHostPort(address); err != nil || port == "" {
			return nil, refuse(fmt.Errorf("address %q is not of the form host:port", address))
		}
	}
	trust, err := identity.ParseTrustPEM([]byte(c.CA))
	if err != nil {
		return nil, refuse(err)
	}
	if trust.Cluster() != c.Cluster {
		return nil, refuse(fmt.Errorf("its certificate is of cluster %s, but it names cluster %q", trust.Cluster(), c.Cluster))
	}
	return trust, nil
}

// Context is the context of the given name; the current one if the name is empty.
func (c *Config) Context(name string) (Context, error) {
	if name == "" {
		name = c.Current
	}
	i := c.index(name)
	switch {
	case i >= 0:
		return c.Contexts[i], nil
	case len(c.Contexts) == 0:
		return Context{}, errors.New("no cluster is known yet: start one with: cloudless up, or log in to one with: cloudless login")
	case name == "":
		return Context{}, fmt.Errorf("no context is chosen: choose one of %s with: cloudless context use", c.names())
	}
	if near := suggest.To(name, c.Names()); near != "" {
		return Context{}, fmt.Errorf("context %q does not exist; did you mean %s?", name, near)
	}
	return Context{}, fmt.Errorf("context %q does not exist: there is %s", name, c.names())
}

// Set adds the context, or replaces the one with the same name. The first one becomes the current one.
func (c *Config) Set(context Context) {
	if i := c.index(context.Name); i >= 0 {
		c.Contexts[i] = context
	} else {
		c.Contexts = append(c.Contexts, context)
	}
	if c.index(c.Current) < 0 {
		c.Current = context.Name
	}
}

// RemoveCluster removes every context of the cluster and returns their names. If the current one is among them, no
// context is current unless exactly one is left.
func (c *Config) RemoveCluster(cluster string) []string {
	return c.remove(func(have Context) bool { return have.Cluster == cluster })
}

// RemoveServer removes a server from the contexts of its cluster. It removes contexts that have no other server, and
// returns their names.
func (c *Config) RemoveServer(cluster string, addresses ...string) []string {
	for i, have := range c.Contexts {
		if have.Cluster == cluster {
			c.Contexts[i].Addresses = slices.DeleteFunc(slices.Clone(have.Addresses), func(a string) bool { return slices.Contains(addresses, a) })
		}
	}
	return c.remove(func(have Context) bool { return have.Cluster == cluster && len(have.Addresses) == 0 })
}

// Remove removes a context by its name, in the same way.
func (c *Config) Remove(name string) {
	c.remove(func(have Context) bool { return have.Name == name })
}

func (c *Config) remove(which func(Context) bool) []string {
	var removed []string
	c.Contexts = slices.DeleteFunc(c.Contexts, func(have Context) bool {
		if !which(have) {
			return false
		}
		removed = append(removed, have.Name)
		return true
	})
	if slices.Contains(removed, c.Current) {
		c.Current = ""
	}
	if c.Current == "" && len(c.Contexts) == 1 {
		c.Current = c.Contexts[0].Name
	}
	return removed
}

// FreeName is the given name, with a number appended if a context of another cluster has that name.
func (c *Config) FreeName(cluster, wanted string) string {
	name := wanted
	for n := 2; c.index(name) >= 0 && c.Contexts[c.index(name)].Cluster != cluster; n++ {
		name = fmt.Sprintf("%s-%d", wanted, n)
	}
	return name
}

func (c *Config) index(name string) int {
	return slices.IndexFunc(c.Contexts, func(have Context) bool { return have.Name == name })
}

// Names yields the names of all contexts.
func (c *Config) Names() iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, context := range c.Contexts {
			if !yield(context.Name) {
				return
			}
		}
	}
}

func (c *Config) names() string { return strings.Join(slices.Collect(c.Names()), ", ") }

// ConfigPath is the path of the configuration: CLOUDLESS_CONFIG, or else a file in the user's configuration folder.
func ConfigPath() (string, error) {
	if path := os.Getenv(ConfigEnv); path != "" {
		return path, nil
	}
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("find the configuration folder: %w: set %s to the path of the configuration file", err, ConfigEnv)
	}
	return filepath.Join(dir, "cloudless", "config.yaml"), nil
}

// LoadConfig reads the configuration, YAML or JSON. A missing file is an empty configuration; one that others may read
// is refused, because it holds tokens.
func LoadConfig(path string) (*Config, error) {
	data, err := readPrivate(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &Config{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the client configuration: %w", err)
	}
	config, err := parseConfig(data)
	if err != nil {
		return nil, fmt.Errorf("read the client configuration %s: %w", path, err)
	}
	return config, nil
}

func readPrivate(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 && runtime.GOOS != "windows" {
		return nil, fmt.Errorf("%s holds tokens and must not be open to others (its mode is %#o): run chmod 600 on it", path, mode)
	}
	return io.ReadAll(f)
}

func parseConfig(data []byte) (*Config, error) {
	var config Config
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	decoder.KnownFields(true)
	if err := decoder.Decode(&config); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	seen := map[string]bool{}
	for _, context := range config.Contexts {
		if context.Name == "" {
			return nil, errors.New("a context has no name: give it one")
		}
		if seen[context.Name] {
			return nil, fmt.Errorf("context %q is there twice: remove one", context.Name)
		}
		seen[context.Name] = true
	}
	return &config, nil
}

// UpdateConfig changes the configuration, atomically and under a lock. If change fails, everything stays as it was.
func UpdateConfig(path string, change func(*Config) error) error {
	if err := updateConfig(path, change); err != nil {
		return fmt.Errorf("update the client configuration: %w", err)
	}
	return nil
}

var errOnlyChecked = errors.New("nothing to change")

// CheckConfig says why UpdateConfig would fail.
func CheckConfig(path string) error {
	err := UpdateConfig(path, func(*Config) error { return errOnlyChecked })
	if errors.Is(err, errOnlyChecked) {
		return nil
	}
	return err
}

func updateConfig(path string, change func(*Config) error) error {
	// A link is followed, so that a configuration kept elsewhere stays there.
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("%w: set %s to the path of a file that can be written", err, ConfigEnv)
	}
	unlock, err := lockedfile.MutexAt(path + ".lock").Lock()
	if err != nil {
		return err
	}
	defer unlock()
	config, err := LoadConfig(path)
	if err != nil {
		return err
	}
	if err := change(config); err != nil {
		return err
	}
	data, err := yaml.Marshal(config)
	if err != nil {
		return err
	}
	return atomicfile.Replace(path, data)
}

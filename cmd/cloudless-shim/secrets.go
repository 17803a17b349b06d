package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// secretsAnnotation names the file, on a file system in memory, with the secret variables of a container: a JSON object.
// Package driver/containerd sets it. containerd itself never learns the variables, because it writes what it knows to
// disk.
const secretsAnnotation = "cloudless.secrets"

// configName is the OCI configuration in a bundle.
const configName = "config.json"

// secrets adds the variables of one container to the processes that runc starts in it. The zero value adds none.
type secrets struct{ path string }

// variables reads the file. The error never has a part of its content.
func (s secrets) variables() (map[string]string, error) {
	data, err := os.ReadFile(s.path)
	if err != nil {
		return nil, fmt.Errorf("read the secret variables: %w", err)
	}
	return parseVariables(data)
}

func parseVariables(data []byte) (map[string]string, error) {
	var variables map[string]string
	if err := json.Unmarshal(data, &variables); err != nil { // the error may quote the file
		return nil, errors.New("read the secret variables: the file is damaged")
	}
	return variables, nil
}

// setEnvironment replaces variables of an environment, and adds the others.
func setEnvironment(env []string, variables map[string]string) []string {
	set := slices.DeleteFunc(slices.Clone(env), func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		_, secret := variables[name]
		return secret
	})
	for _, name := range slices.Sorted(maps.Keys(variables)) {
		set = append(set, name+"="+variables[name])
	}
	return set
}

// setProcess sets variables in the JSON of a process, and keeps everything else as it is.
func setProcess(process []byte, variables map[string]string) ([]byte, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(process, &fields); err != nil || fields == nil {
		return nil, errors.New("the description of the process is not a JSON object")
	}
	var env []string
	if have, found := fields["env"]; found {
		if err := json.Unmarshal(have, &env); err != nil {
			return nil, errors.New("the environment of the process is not a list")
		}
	}
	var err error
	if fields["env"], err = json.Marshal(setEnvironment(env, variables)); err != nil {
		return nil, err
	}
	return json.Marshal(fields)
}

// setConfig sets variables in an OCI configuration.
func setConfig(config []byte, variables map[string]string) ([]byte, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(config, &fields); err != nil || fields == nil {
		return nil, errors.New("the configuration of the container is not a JSON object")
	}
	var err error
	if fields["process"], err = setProcess(fields["process"], variables); err != nil {
		return nil, err
	}
	return json.Marshal(fields)
}

// lend lets runc read the configuration of a bundle with the variables, until back is called. The bundle may be on a disk,
// so its file becomes a link to one in this process's memory. If the process is killed, the link leads nowhere.
func (s secrets) lend(bundle string) (back func() error, err error) {
	nothing := func() error { return nil }
	if s.path == "" {
		return nothing, nil
	}
	path := filepath.Join(bundle, configName)
	plain, err := os.ReadFile(path)
	if err != nil {
		return nothing, err
	}
	variables, err := s.variables()
	if err != nil {
		return nothing, err
	}
	config, err := setConfig(plain, variables)
	if err != nil {
		return nothing, err
	}
	fd, err := unix.MemfdCreate("config", unix.MFD_CLOEXEC)
	if err != nil {
		return nothing, fmt.Errorf("make a file in memory: %w", err)
	}
	memory := os.NewFile(uintptr(fd), "config")
	if _, err := memory.Write(config); err != nil {
		return nothing, errors.Join(fmt.Errorf("write a file in memory: %w", err), memory.Close())
	}
	link := path + ".secret"
	if err := replaceBy(path, link, os.Symlink(fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd), link)); err != nil {
		return nothing, errors.Join(err, memory.Close())
	}
	return func() error {
		return errors.Join(memory.Close(), replaceBy(path, path+".plain", os.WriteFile(path+".plain", plain, 0o666)))
	}, nil
}

// replaceBy renames a file that was made, unless that has failed.
func replaceBy(path, made string, err error) error {
	if err == nil {
		err = os.Rename(made, path)
	}
	if err != nil {
		_ = os.Remove(made)
	}
	return err
}

// useMemory makes this process and runc keep temporary files beside the file with the variables, which is in memory: the
// description of each further process is in one.
func (s secrets) useMemory() error {
	if s.path == "" {
		return nil
	}
	return os.Setenv("XDG_RUNTIME_DIR", filepath.Dir(s.path))
}

// amend adds the variables to a further process. A process that starts after they have expired does not get them.
func (s secrets) amend(r *taskapi.ExecProcessRequest) (*taskapi.ExecProcessRequest, error) {
	if s.path == "" || r.Spec == nil {
		return r, nil
	}
	variables, err := s.variables()
	if err != nil {
		logrus.WithError(err).Warn("a process starts without the secrets of its container")
		return r, nil
	}
	process, err := setProcess(r.Spec.Value, variables)
	if err != nil {
		return nil, err
	}
	amended := proto.CloneOf(r)
	amended.Spec = &anypb.Any{TypeUrl: r.Spec.TypeUrl, Value: process}
	return amended, nil
}

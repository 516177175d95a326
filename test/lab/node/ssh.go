package node

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/crypto/ssh"

	"sluice.dev/sluice/internal/lib/replace"
)

// SSHKey returns the public key of a private one in a file, which it makes if there is none.
func SSHKey(file string) (public string, err error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		text, err = newSSHKey(file)
	}
	var key ssh.Signer
	if err == nil {
		key, err = ssh.ParsePrivateKey(text)
	}
	if err != nil {
		return "", fmt.Errorf("make a key for SSH: %w", err)
	}
	return string(ssh.MarshalAuthorizedKey(key.PublicKey())), nil
}

func newSSHKey(file string) ([]byte, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	block, err := ssh.MarshalPrivateKey(key, "")
	if err != nil {
		return nil, err
	}
	text := pem.EncodeToMemory(block)
	return text, replace.File(file, text, 0o600)
}

// listenSSH lets everybody with the key run commands on the node, as root. They may say sudo, as
// users of SSH who are not root do.
func (c *Config) listenSSH(s *supervisor) error {
	authorized, _, _, _, err := ssh.ParseAuthorizedKey([]byte(c.SSHKey))
	if err != nil {
		return fmt.Errorf("read the key for SSH: %w", err)
	}
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	host, err := ssh.NewSignerFromKey(key)
	if err != nil {
		return err
	}
	if err := replace.File(filepath.Join(commandsDir, "sudo"), []byte("#!/bin/sh\nexec \"$@\"\n"), 0o755); err != nil {
		return err
	}
	server := &ssh.ServerConfig{PublicKeyCallback: func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
		if string(key.Marshal()) != string(authorized.Marshal()) {
			return nil, errors.New("it is another key")
		}
		return nil, nil
	}}
	server.AddHostKey(host)
	listener, err := net.Listen("tcp", ":22")
	if err != nil {
		return err
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go s.serveSSH(conn, server)
		}
	}()
	return nil
}

// serveSSH serves a client, until it closes the connection.
func (s *supervisor) serveSSH(conn net.Conn, server *ssh.ServerConfig) {
	defer func() { _ = conn.Close() }() // the client may have closed it
	_, channels, requests, err := ssh.NewServerConn(conn, server)
	if err != nil {
		return // the client hears why
	}
	go ssh.DiscardRequests(requests)
	for c := range channels {
		if c.ChannelType() != "session" {
			_ = c.Reject(ssh.UnknownChannelType, "sessions alone") // the client may have gone
			continue
		}
		channel, requests, err := c.Accept()
		if err != nil {
			return
		}
		go s.serveSession(channel, requests)
	}
}

// serveSession runs the command of a session, which is all that a session can do.
func (s *supervisor) serveSession(channel ssh.Channel, requests <-chan *ssh.Request) {
	defer func() { _ = channel.Close() }() // the client may have closed it
	for r := range requests {
		var of struct{ Command string }
		run := r.Type == "exec" && ssh.Unmarshal(r.Payload, &of) == nil
		if r.WantReply {
			_ = r.Reply(run, nil) // the client may have gone
		}
		if !run {
			continue
		}
		go ssh.DiscardRequests(requests)
		status, err := s.runFor(channel, channel.Stderr(), []string{"/bin/sh", "-c", of.Command})
		if err != nil {
			_, _ = fmt.Fprintln(channel.Stderr(), err) // the client may have gone
		}
		_, _ = channel.SendRequest("exit-status", false, ssh.Marshal(struct{ Status uint32 }{uint32(status)})) // likewise
		return
	}
}

// runFor runs a program to its end, and copies what it prints. The status is 255 if a signal ended
// it, or if it could not be started.
func (s *supervisor) runFor(out, errOut io.Writer, args []string) (status uint8, err error) {
	var files [2]*os.File
	var copying sync.WaitGroup
	defer copying.Wait()
	for i, to := range []io.Writer{out, errOut} {
		from, file, err := os.Pipe()
		if err != nil {
			return 255, err
		}
		defer file.Close()
		files[i] = file
		copying.Go(func() {
			_, _ = io.Copy(to, from) // the client may have gone
			_ = from.Close()         // it was only read
		})
	}
	ended, err := s.start(files[0], files[1], args)
	if err != nil {
		return 255, err
	}
	return uint8(<-ended), nil
}

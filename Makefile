# pgkin: one non-recursive Makefile. `make help` lists the targets.
#
# Flags come from pkg-config when this file is read, so the targets that may
# install packages (run, test, ...) call scripts/setup first and then make
# itself again.

BUILD   ?= build
PREFIX  ?= /usr/local
DESTDIR ?=
BINDIR     ?= $(PREFIX)/bin
LIBDIR     ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
MANDIR     ?= $(PREFIX)/share/man
UNITDIR    ?= $(PREFIX)/lib/systemd/system

ifeq ($(origin CC),default)
CC      := gcc
endif
VERSION := $(shell sed -n 's/^\#define PGKIN_VERSION "\(.*\)"/\1/p' include/pgkin.h)
SOVERSION := 0
PKGS    := libpq libevent libcurl jansson inih

WARN := -std=c11 -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes \
        -Wmissing-prototypes -Wpointer-arith -Wwrite-strings -Wvla -Wformat=2
FORTIFY ?= -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2
HARDEN  := -fstack-protector-strong -fPIC -fvisibility=hidden $(FORTIFY)
OPT     ?= -O2 -g
SANITIZE ?=
ALL_CPPFLAGS := -D_GNU_SOURCE -Iinclude -Isrc $(CPPFLAGS) \
                $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
ALL_CFLAGS := $(WARN) $(OPT) $(HARDEN) $(SANITIZE) $(CFLAGS)
ALL_LDFLAGS := -Wl,-z,relro,-z,now -Wl,--as-needed $(SANITIZE) $(LDFLAGS)
LIBS    := $(shell pkg-config --libs $(PKGS) 2>/dev/null) -lpthread -lm

LIB_SRC := $(wildcard src/core/*.c src/lib/*.c src/daemon/*.c)
BIN_SRC := $(filter-out $(LIB_SRC),$(wildcard src/*/*.c))
UNIT_SRC := $(wildcard test/unit/test_*.c)
LIB_OBJ := $(LIB_SRC:%.c=$(BUILD)/%.o) $(BUILD)/assets.o
BIN_OBJ := $(BIN_SRC:%.c=$(BUILD)/%.o)
MAIN_OBJ := $(BUILD)/src/cli/main.o
UNIT_OBJ := $(UNIT_SRC:%.c=$(BUILD)/%.o)
UNIT_BIN := $(UNIT_SRC:%.c=$(BUILD)/%)
ASSETS  := $(wildcard sql/migrations/*.sql sql/functions/*.sql sql/queries/*.sql web/*)

# As many jobs as there are processors, unless make was already given a -j.
JOBS = $(if $(findstring jobserver,$(MAKEFLAGS)),,-j$$(nproc))
SUBMAKE = +@$(MAKE) --no-print-directory $(JOBS)

# What is done to which file; V=1 shows the whole commands.
V ?=
say = $(if $(V)$(findstring s,$(firstword -$(MAKEFLAGS))),$(if $(V),,@),@printf '  %-4s %s\n' $(1) '$(2)';)

.DELETE_ON_ERROR:
.PHONY: all
all: $(BUILD)/pgkin $(BUILD)/libpgkin.a $(BUILD)/libpgkin.so ## build the binary and both libraries

$(BUILD)/pgkin: $(MAIN_OBJ) $(BUILD)/parts.a $(BUILD)/libpgkin.a
	$(call say,LD,$@)$(CC) $(ALL_LDFLAGS) -pie -o $@ $^ $(LIBS)

# The program but for its main(): the unit tests link with it too.
$(BUILD)/parts.a: $(filter-out $(MAIN_OBJ),$(BIN_OBJ)) $(BUILD)/sources
	@rm -f $@
	$(call say,AR,$@)$(AR) rcs $@ $(filter %.o,$^)

$(BUILD)/libpgkin.a: $(LIB_OBJ) $(BUILD)/sources
	@rm -f $@
	$(call say,AR,$@)$(AR) rcs $@ $(filter %.o,$^)

$(BUILD)/libpgkin.so: $(LIB_OBJ) $(BUILD)/sources
	$(call say,LD,$@)$(CC) $(ALL_LDFLAGS) -shared -Wl,-soname,libpgkin.so.$(SOVERSION) -o $@ \
	    $(filter %.o,$^) $(LIBS)

$(BUILD)/%.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CC,$<)$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) -MMD -MP -c -o $@ $<

$(BUILD)/assets.S: scripts/embed-assets $(ASSETS) $(BUILD)/sources
	$(call say,GEN,$@)scripts/embed-assets $(ASSETS) > $@

$(BUILD)/assets.o: $(BUILD)/assets.S $(BUILD)/flags
	$(call say,AS,$<)$(CC) -c -o $@ $<

# Two stamps make the build notice what time stamps do not show: another
# compiler or other flags (flags), a file that was removed (sources). They are
# compared while this file is read, and only a difference makes a rule run.
FLAGS   := $(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) $(ALL_LDFLAGS) $(LIBS)
SOURCES := $(LIB_SRC) $(BIN_SRC) $(ASSETS)
ifneq ($(strip $(file <$(BUILD)/flags)),$(strip $(FLAGS)))
$(BUILD)/flags: FORCE
endif
ifneq ($(strip $(file <$(BUILD)/sources)),$(strip $(SOURCES)))
$(BUILD)/sources: FORCE
endif
$(BUILD)/flags:
	@mkdir -p $(@D)
	@printf '%s\n' '$(subst ','\'',$(strip $(FLAGS)))' > $@
$(BUILD)/sources:
	@mkdir -p $(@D)
	@printf '%s\n' '$(strip $(SOURCES))' > $@

# ---------------------------------------------------------------- unit tests
.PHONY: unit-tests
unit-tests: $(UNIT_BIN)

$(UNIT_BIN): %: %.o $(BUILD)/parts.a $(BUILD)/libpgkin.a
	$(call say,LD,$@)$(CC) $(ALL_LDFLAGS) -pie -o $@ $^ $(LIBS) -lcmocka

# ------------------------------------------------------------- run and check

.PHONY: run
run: ## install what is missing, build, and run pgkin on its own PostgreSQL
	@scripts/setup run
	$(SUBMAKE) all
	@exec scripts/run $(BUILD)/pgkin start --demo

TEST_GROUPS := unit sql isolation system
FILTER ?=
TEST_RUN = @test/run --build $(BUILD) $(if $(FILTER),--filter '$(FILTER)')

.PHONY: test $(TEST_GROUPS:%=test-%) test-majors
test: ## install what is missing, build, and run every test; FILTER=pattern
	@scripts/setup test
	$(SUBMAKE) all unit-tests
	$(TEST_RUN) $(TEST_GROUPS)

$(TEST_GROUPS:%=test-%): ## one group of tests: test-unit test-sql test-isolation test-system
	@scripts/setup test
	$(SUBMAKE) all unit-tests
	$(TEST_RUN) $(@:test-%=%)

.PHONY: bench
bench: ## measure this machine, a minute or two (bench/run full: forty)
	@scripts/setup run
	$(SUBMAKE) all
	@PGKIN=$(BUILD)/pgkin bench/run quick

test-majors: ## SQL, isolation and migration tests on PostgreSQL 14 to 18
	@scripts/setup test majors
	$(SUBMAKE) all
	@test/majors --build $(BUILD)

.PHONY: chaos
chaos: ## kill workers at random for some minutes, and count what happened
	@scripts/setup test
	$(SUBMAKE) all
	@test/chaos/run

.PHONY: asan clang
asan: export ASAN_OPTIONS := detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1
asan: export UBSAN_OPTIONS := print_stacktrace=1
asan: ## every test with the address and undefined behaviour sanitizers
	$(SUBMAKE) BUILD=build-asan OPT='-O1 -g' FORTIFY= \
	    SANITIZE='-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer' \
	    test

clang: ## build with clang
	@scripts/setup test clang
	$(SUBMAKE) BUILD=build-clang CC=clang all unit-tests

.PHONY: lint format
lint: ## check format, banned functions, clang-tidy, shellcheck
	@scripts/setup test lint
	@CPPFLAGS='$(ALL_CPPFLAGS)' scripts/lint

format: ## let clang-format rewrite the C files
	@scripts/setup lint
	@clang-format -i $$(find $(wildcard src include test bench) -name '*.[ch]')

# ------------------------------------------------------------------- install

DEST_SO := $(DESTDIR)$(LIBDIR)/libpgkin.so
FILL = sed -e 's|@VERSION@|$(VERSION)|g' -e 's|@PREFIX@|$(PREFIX)|g' \
           -e 's|@BINDIR@|$(BINDIR)|g' -e 's|@LIBDIR@|$(LIBDIR)|g' \
           -e 's|@INCLUDEDIR@|$(INCLUDEDIR)|g' -e 's|@LIBS@|$(LIBS)|g'

.PHONY: install uninstall
install: all ## install below PREFIX (/usr/local); DESTDIR is put before it
	install -d '$(DESTDIR)$(BINDIR)' '$(DESTDIR)$(LIBDIR)/pkgconfig' \
	    '$(DESTDIR)$(INCLUDEDIR)' '$(DESTDIR)$(MANDIR)/man1' '$(DESTDIR)$(UNITDIR)'
	install -m 755 $(BUILD)/pgkin '$(DESTDIR)$(BINDIR)/pgkin'
	install -m 644 $(BUILD)/libpgkin.a '$(DESTDIR)$(LIBDIR)/libpgkin.a'
	install -m 644 $(BUILD)/libpgkin.so '$(DEST_SO).$(VERSION)'
	ln -sf libpgkin.so.$(VERSION) '$(DEST_SO).$(SOVERSION)'
	ln -sf libpgkin.so.$(SOVERSION) '$(DEST_SO)'
	install -m 644 include/pgkin.h '$(DESTDIR)$(INCLUDEDIR)/pgkin.h'
	$(FILL) packaging/pgkin.pc.in > '$(DESTDIR)$(LIBDIR)/pkgconfig/pgkin.pc'
	$(FILL) man/pgkin.1 > '$(DESTDIR)$(MANDIR)/man1/pgkin.1'
	$(FILL) packaging/pgkin.service > '$(DESTDIR)$(UNITDIR)/pgkin.service'

uninstall: ## remove what install put there
	rm -f '$(DESTDIR)$(BINDIR)/pgkin' '$(DESTDIR)$(LIBDIR)/libpgkin.a' \
	    '$(DEST_SO)' '$(DEST_SO).$(SOVERSION)' '$(DEST_SO).$(VERSION)' \
	    '$(DESTDIR)$(INCLUDEDIR)/pgkin.h' '$(DESTDIR)$(LIBDIR)/pkgconfig/pgkin.pc' \
	    '$(DESTDIR)$(MANDIR)/man1/pgkin.1' '$(DESTDIR)$(UNITDIR)/pgkin.service'

# ----------------------------------------------------------------- the rest

.PHONY: FORCE clean help
FORCE:

clean: ## remove everything that was built
	rm -rf build build-*

help: ## this list
	@sed -n 's/^\([a-z][a-z-]*\):[^=#]*## \(.*\)/  \1|\2/p; s/^\$$(TEST_GROUPS:%=\(test-%\)):.*## \(.*\)/  \1|\2/p' \
	    Makefile | awk -F'|' '{ printf "%-14s %s\n", $$1, $$2 }'

-include $(LIB_OBJ:.o=.d) $(BIN_OBJ:.o=.d) $(UNIT_OBJ:.o=.d)
